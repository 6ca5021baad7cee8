"""Choosing a sampler by what is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from lit_treerl.sampling.base import Sampler


def resolve_sampler(sampler: Literal["auto"] | Sampler) -> Sampler:
    """Return ``sampler`` itself, or for "auto" a VLLMSampler where vLLM is installed, else a TransformersSampler."""
    if isinstance(sampler, Sampler):
        return sampler
    if sampler != "auto":
        raise ValueError(f"sampler is {sampler!r}; give 'auto' or a Sampler such as TransformersSampler")
    if find_spec("vllm") is not None:
        from lit_treerl.sampling.vllm import VLLMSampler

        return VLLMSampler()
    from lit_treerl.sampling.transformers import TransformersSampler

    return TransformersSampler()
