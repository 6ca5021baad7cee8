"""Environments the agent acts in."""
