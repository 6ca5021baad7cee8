"""Leaving torch's global state as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_rng() -> Iterator[None]:
    """Put back the random state of the CPU and of the current GPU."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def kept_rng_and_threads() -> Iterator[None]:
    """Put back the random state, the thread count, and the function that sets it (vLLM on CPU disables it)."""
    threads, set_num_threads = torch.get_num_threads(), torch.set_num_threads
    try:
        with kept_rng():
            yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
