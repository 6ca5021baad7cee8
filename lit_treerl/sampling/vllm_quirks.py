"""What vLLM trips over, or says, beside other libraries."""

from __future__ import annotations

import logging
import sys
import warnings


def prepare_kernel_scan() -> None:
    """Let vLLM's start on CPU read ``__dict__`` of every module's attributes.

    One of llvmlite's, which numba brings along, answers any attribute with a C function; vLLM wants a mapping there.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    functions = getattr(getattr(ffi, "lib", None), "_fntab", None)
    if isinstance(functions, dict):
        functions["__dict__"] = {}  # where llvmlite looks first


def quiet_rotary_reload() -> None:
    """Drop vLLM's warning that a reload brought no rotary tables: they are computed and stay as they are."""
    logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    if _about_weights not in logger.filters:
        logger.addFilter(_about_weights)


def _about_weights(record: logging.LogRecord) -> bool:
    return not record.getMessage().endswith("RotaryEmbedding: Failed to load weights")


def quiet_lone_group() -> None:
    """Drop Lightning's advice to sum over ranks where vLLM has opened a process group of this process alone."""
    import torch.distributed

    if torch.distributed.is_initialized() and torch.distributed.get_world_size() == 1:
        warnings.filterwarnings("ignore", message=".*sync_dist=True")
