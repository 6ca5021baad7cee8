"""Task sources and data modules."""
