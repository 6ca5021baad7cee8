"""The pack: the unique tokens of one or more trees, each once, with what the loss needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pack:
    """Unique tokens in depth-first order of their nodes.

    Legend: N tokens, S segments (a segment is a run of tokens with one parent segment; tree nodes become one
    segment in the ``growing`` style, while in ``window`` style an action and the fresh prompt after it are two).

    Attributes:
        ids: [N] token ids.
        parent: [N] index of the token that comes before in the token's own context, -1 where a context begins.
        position: [N] position in the token's own context.
        segment: [N] segment of each token; segments are contiguous and numbered in order.
        segment_parent: [S] the segment whose last token precedes this one's first, -1 at the start of a context.
        action: [N] True where the policy sampled the token (only these are ever trained on).
        sampler_logprobs: [N] log-prob given by the sampler, 0 elsewhere.
        positive: [N] sum over the leaves through the token of weight * max(advantage, 0).
        negative: [N] sum over the leaves through the token of weight * min(advantage, 0).
        weight: [N] sum of those leaves' weights; normalised so that losses of an optimizer step's packs just add.
        old_logprobs: [N] log-probs under the policy at the start of the iteration, None on the first step of it.
        ref_logprobs: [N] log-probs under the frozen reference, None without KL.
        step_end: the optimizer steps after this pack.
    """

    ids: Tensor
    parent: Tensor
    position: Tensor
    segment: Tensor
    segment_parent: Tensor
    action: Tensor
    sampler_logprobs: Tensor
    positive: Tensor
    negative: Tensor
    weight: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    step_end: bool = True

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def idle(cls) -> Pack:
        """A pack without tokens: an iteration in which no task taught anything still needs one batch."""
        none, flag, zero = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.bool), torch.zeros(0)
        return cls(none, none, none, none, none, flag, zero, zero, zero, zero)

    def to(self, device: torch.device | str) -> Pack:
        """The same pack with its tensors on ``device`` (Lightning moves batches by this method)."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v.to(device) for k, v in moved.items() if isinstance(v, Tensor)})
