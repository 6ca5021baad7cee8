"""The Sampler contract: token ids in, token ids and log-probs out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

FinishReason = Literal["stop", "eos", "length"]


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one action.

    Attributes:
        max_new_tokens: most tokens to sample.
        temperature: 0 takes the most likely token; log-probs are those of the temperature-scaled distribution
            (of the plain distribution at temperature 0).
        stop: strings that end the action; the token that completes one is kept whole.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One action to sample.

    Attributes:
        id: the caller's own, comes back.
        prompt_ids: what comes before the action.
        params: how to sample.
        seed: decides the randomness alone.
        priority: of requests that wait for room, those with the lowest number run first.
    """

    id: int
    prompt_ids: Sequence[int]
    params: SamplingParams
    seed: int
    priority: int = 0


@dataclass(frozen=True)
class Completion:
    """One sampled action; ``ids`` and ``logprobs`` have equal length and include a closing eos token."""

    id: int
    ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    cached_tokens: int = 0


@dataclass
class SamplerCounters:
    """Tokens since :meth:`Sampler.reset_counters`."""

    prompt_tokens: int = 0  # tokens of all submitted prompts
    cached_tokens: int = 0  # of these, not computed again thanks to a prefix cache
    sampled_tokens: int = 0


class Sampler(ABC):
    """Samples actions from the policy; construction only keeps settings, :meth:`start` builds the engine."""

    def __init__(self) -> None:
        self.counters = SamplerCounters()

    @abstractmethod
    def start(
        self,
        policy: str | Path,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_context: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """Build the engine from a Hugging Face folder; does nothing when already built.

        Args:
            policy: folder with config and weights.
            tokenizer: decodes for stop strings.
            max_context: longest prompt plus action, in tokens.
            device: where to compute.
            seed: of the engine itself; actions take the seed of their request.
        """

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Queue one request; never blocks."""

    @abstractmethod
    def poll(self, interrupt: Callable[[], bool] | None = None) -> list[Completion]:
        """Work until at least one queued request is done and return the done ones; [] when nothing is queued.

        Args:
            interrupt: asked again and again; says that the caller has more to submit. Where it is true and there is
                room for more, the requests that are done are returned at once, which may be none.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop every request that is queued or running, and what was sampled of it; the sampler can be used again.

        Cached prefixes may be forgotten. Does nothing before :meth:`start`.
        """

    @abstractmethod
    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take new weights, named as in the Hugging Face state dict, and forget every cached prefix."""

    def forget_prefixes(self) -> None:
        """Forget every cached prefix, where any are kept; nothing may be in flight.

        What is sampled does not depend on what came before then, down to the last bit of the log-probs.
        """

    def reset_counters(self) -> SamplerCounters:
        """Return the counters so far and start again at 0."""
        done, self.counters = self.counters, SamplerCounters()
        return done

    def close(self) -> None:
        """Give the engine's memory back."""
