"""Reinforcement learning of LLM agents from trees of rollouts."""

__version__ = "0.1.0"
