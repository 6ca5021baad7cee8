"""Advantages and losses: pure functions on tensors, and one thin class per method."""
