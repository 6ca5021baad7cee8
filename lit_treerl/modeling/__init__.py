"""Actor, attention over packs, log-probs."""
