"""What has to be put right before vLLM starts, without vLLM."""

import logging
import sys

import pytest

from lit_treerl.sampling.vllm_quirks import prepare_kernel_scan, quiet_rotary_reload


def test_attributes_of_all_modules_can_be_scanned_once_numba_is_loaded():
    pytest.importorskip("numba")
    prepare_kernel_scan()
    found = [vars(value) for value in vars(sys.modules["llvmlite.binding.ffi"]).values() if hasattr(value, "__dict__")]
    assert found
    assert all(hasattr(attributes, "get") for attributes in found)


def test_only_the_note_on_rotary_tables_is_dropped(caplog):
    logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    quiet_rotary_reload()
    quiet_rotary_reload()
    assert len(logger.filters) == 1
    with caplog.at_level(logging.WARNING, logger=logger.name):
        for name in ("RotaryEmbedding", "Llama3RotaryEmbedding", "QKVParallelLinear"):
            logger.warning("%s: Failed to load weights", name)
    assert caplog.messages == ["QKVParallelLinear: Failed to load weights"]
