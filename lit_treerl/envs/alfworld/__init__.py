"""ALFWorld through its real engine: Fast Downward's state and rules, TextWorld's grammar (arXiv 2010.03768)."""
