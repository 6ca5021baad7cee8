"""Peak memory of what runs between two calls, in a process of its own."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch


class PeakMemory:
    """Most bytes held after :meth:`start`, beyond those held then.

    Args:
        device: ``cuda``, or ``cpu`` for the resident memory of this process (Linux).
    """

    def __init__(self, device: str = "cpu") -> None:
        self._cuda = device == "cuda"
        self._held = 0

    def start(self) -> None:
        """Forget the peak so far."""
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._held = torch.cuda.memory_allocated()
        else:
            ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not be used again unseen
            Path("/proc/self/clear_refs").write_text("5")
            self._held = _status("VmRSS")

    def peak(self) -> int:
        """Bytes."""
        if self._cuda:
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - self._held
        return _status("VmHWM") - self._held


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))
