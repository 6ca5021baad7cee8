"""Attention over packs: the one place that decides how the hidden states of unique tokens are computed."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from lit_treerl.modeling import tree_attention
from lit_treerl.modeling.dense_attention import dense_hidden
from lit_treerl.modeling.pack import Pack

AttentionKind = Literal["tree", "dense"]
"""``tree``: nothing is computed but the pack's tokens; ``dense``: padded rows and masks, the slow reference."""

_KERNELS: dict[AttentionKind, str] = {"tree": tree_attention.NAME, "dense": "sdpa"}


def attention_kernel(kind: AttentionKind) -> str:
    """What to give as ``attn_implementation`` when a model is loaded that is to compute packs."""
    if kind == "tree":
        tree_attention.register()
    return _KERNELS[kind]


def forward_hidden(backbone: nn.Module, pack: Pack) -> Tensor:
    """Final hidden states [N, H] of a pack's N tokens, each attending to its own context only.

    Exact for decoders that see the order of tokens through position ids alone (Llama, Qwen2, Qwen3).

    Args:
        backbone: a Hugging Face decoder without its head, loaded with an :func:`attention_kernel`.
        pack: what to compute.

    Raises:
        ValueError: where the model cannot be run this way; see :func:`check_backbone`.
    """
    check_backbone(backbone)
    if backbone.config._attn_implementation == tree_attention.NAME:  # type: ignore[union-attr]
        return tree_attention.tree_hidden(backbone, pack)
    return dense_hidden(backbone, pack)


def check_backbone(backbone: nn.Module) -> None:
    """Raise ValueError where a pack would be misread: other kernels, windows, recurrent layers."""
    config = backbone.config
    kernel = config._attn_implementation  # type: ignore[union-attr]
    if kernel not in _KERNELS.values():
        kinds = " or ".join(repr(name) for name in _KERNELS.values())
        raise ValueError(f"packs need attn_implementation={kinds}, the model was loaded with {kernel!r}")
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if layers != {"full_attention"} or (window is not None and not hasattr(config, "layer_types")):
        raise ValueError(
            f"packs need full attention in every layer; this {config.model_type} has layers {sorted(layers)} "  # type: ignore[union-attr]
            f"and sliding_window {window}"
        )
