"""Sampling with Hugging Face transformers alone, for machines without vLLM."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from lit_treerl.sampling.base import Completion, Request, Sampler
from lit_treerl.sampling.checks import check_drained, check_request, eos_token_ids

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from lit_treerl.sampling.continuous_batch import ContinuousBatch, Row

BLOCK = 8  # tokens; small, so that a turn of a few words is already worth reusing


class TransformersSampler(Sampler):
    """Continuous batching over a Hugging Face causal language model, with reuse of shared prefixes.

    Fits decoders with full attention in every layer, such as Qwen2, Qwen3 and Llama.

    Args:
        dtype: of weights, keys and values.
        max_batch: most requests decoded at a time.
        prefix_cache: keep keys and values of prompts and finished actions for later requests.
        cache_tokens: most tokens kept by the prefix cache, as many as fit into 1 GiB (at least four whole contexts)
            when not given; the least recently used leave first.
        refill: share of the running requests that has to finish before :meth:`poll` returns.
        prefill_tokens: most prompt tokens in one forward.
    """

    def __init__(
        self,
        dtype: Literal["float32", "bfloat16"] = "float32",
        max_batch: int = 256,
        prefix_cache: bool = True,
        cache_tokens: int | None = None,
        refill: float = 0.25,
        prefill_tokens: int = 8192,
    ) -> None:
        super().__init__()
        if max_batch < 1 or prefill_tokens < 1 or (cache_tokens or 0) < 0:
            raise ValueError("max_batch and prefill_tokens must be at least 1, and cache_tokens at least 0")
        if not 0 <= refill <= 1:
            raise ValueError(f"refill is {refill}; it is a share between 0 and 1")
        self.dtype = dtype
        self.max_batch = max_batch
        self.prefix_cache = prefix_cache
        self.cache_tokens = cache_tokens
        self.refill = refill
        self.prefill_tokens = prefill_tokens
        self.version = 0
        self._model: Any = None
        self._batch: ContinuousBatch | None = None
        self._in_flight: set[int] = set()

    def start(
        self,
        policy: str | Path,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_context: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """Load the model; see :meth:`Sampler.start`."""
        if self._batch is not None:
            return
        import torch
        from transformers import AutoModelForCausalLM

        from lit_treerl.sampling import attention
        from lit_treerl.sampling.torch_state import kept_rng
        from lit_treerl.sampling.weights import WeightNames

        with kept_rng():
            model = AutoModelForCausalLM.from_pretrained(
                policy, dtype=getattr(torch, self.dtype), attn_implementation=attention.register()
            )
        _check_full_attention(model.config, policy)
        self._model = cast(Any, model.eval()).to(device)
        self._names = WeightNames(self._model)
        self._max_context = max_context
        self._batch = self._build_batch(tokenizer, torch.device(device))

    def _build_batch(self, tokenizer: PreTrainedTokenizerBase, device: torch.device) -> ContinuousBatch:
        from lit_treerl.sampling.continuous_batch import ContinuousBatch
        from lit_treerl.sampling.kv_cache import PrefixStore, RowCache, default_cache_tokens
        from lit_treerl.sampling.stop_strings import StopStrings

        model = self._model
        cache = RowCache(
            model.config, model.dtype, device, block=BLOCK, max_rows=self.max_batch, max_length=self._max_context
        )
        tokens = self.cache_tokens
        if tokens is None:
            tokens = default_cache_tokens(cache.token_bytes, self._max_context)
        generation = model.generation_config
        return ContinuousBatch(
            model,
            cache,
            PrefixStore(cache, tokens) if self.prefix_cache else None,
            StopStrings(tokenizer, model.config.vocab_size),
            eos_token_ids(generation.eos_token_id if generation else None, cast("int | None", tokenizer.eos_token_id)),
            max_batch=self.max_batch,
            prefill_tokens=self.prefill_tokens,
        )

    def submit(self, request: Request) -> None:
        """Queue one request.

        Raises:
            ValueError: the request can never be sampled, for example because it is longer than ``max_context``.
        """
        from lit_treerl.sampling.continuous_batch import Row

        batch = self._started()
        vocab_size = self._model.config.vocab_size
        check_request(request, max_context=self._max_context, vocab_size=vocab_size, in_flight=self._in_flight)
        self._in_flight.add(request.id)
        self.counters.prompt_tokens += len(request.prompt_ids)
        batch.add(Row(request))

    def poll(self, interrupt: Callable[[], bool] | None = None) -> list[Completion]:
        """Decode until a fair share is done, admitting what is queued, and return the done ones.

        ``interrupt`` is asked after every step with room for another row.
        """
        import torch

        batch = self._started()
        with torch.inference_mode():
            finished: list[Row] = []
            share = max(1, math.ceil(self.refill * batch.size))
            while batch.busy and len(finished) < share:
                finished += batch.step()
                if interrupt is not None and batch.room and interrupt():
                    break
        return [self._complete(row) for row in finished]

    def abort(self) -> None:
        """Drop every request, and every cached prefix."""
        if self._batch is not None:
            self._batch.clear()
        self._in_flight.clear()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Copy new weights in place; see :meth:`Sampler.load_weights`.

        Raises:
            ValueError: a name is unknown or missing, or a shape is wrong.
            RuntimeError: requests are still in flight.
        """
        from lit_treerl.sampling.weights import copy_weights

        self.forget_prefixes()
        copy_weights(self._model, self._names, weights)
        self.version = version

    def forget_prefixes(self) -> None:
        """Forget every cached prefix.

        Raises:
            RuntimeError: requests are still in flight.
        """
        batch = self._started()
        check_drained(len(self._in_flight))
        batch.forget_prefixes()

    def close(self) -> None:
        """Give the memory back; :meth:`start` builds anew."""
        self._batch = self._model = None
        self._in_flight.clear()

    def _complete(self, row: Row) -> Completion:
        assert row.finish_reason is not None
        self._in_flight.remove(row.request.id)
        self.counters.cached_tokens += row.cached
        self.counters.sampled_tokens += len(row.ids)
        return Completion(row.request.id, row.ids, row.logprobs, row.finish_reason, row.cached)

    def _started(self) -> ContinuousBatch:
        if self._batch is None:
            raise RuntimeError("the sampler is not started; call start() first")
        return self._batch


def _check_full_attention(config: PreTrainedConfig, policy: str | Path) -> None:
    other = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if other:
        raise ValueError(
            f"{policy}: layers of type {', '.join(sorted(other))} are not supported by TransformersSampler,"
            " which needs full attention in every layer; use VLLMSampler"
        )
