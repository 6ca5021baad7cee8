"""Passage retrieval for search environments."""
