"""Continuous batching: rows join and leave a running batch, and prompts start from what is already computed."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_treerl.sampling.base import FinishReason, Request
from lit_treerl.sampling.decode import sample_tokens
from lit_treerl.sampling.kv_cache import PrefixStore, RowCache
from lit_treerl.sampling.prefix_index import BlockKey
from lit_treerl.sampling.ragged import RaggedTokens
from lit_treerl.sampling.stop_strings import StopStrings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Row:
    """One request on its way."""

    __slots__ = ("cached", "computed", "finish_reason", "ids", "logprobs", "prompt", "request", "uniform", "waited_at")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.prompt = list(request.prompt_ids)
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.uniform = Random(request.seed).random
        self.finish_reason: FinishReason | None = None
        self.cached = 0
        self.computed = 0  # leading tokens whose keys and values are in the cache
        self.waited_at = -1  # known blocks when the row last waited for another one's prompt

    def new_tokens(self) -> list[int]:
        """Tokens that the next forward has to compute."""
        return self.ids[-1:] if self.ids else self.prompt[self.computed :]

    def take(self, token: int, logprob: float, eos: frozenset[int], stops: StopStrings) -> None:
        """Append a sampled token and see whether it ends the action."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        params = self.request.params
        if token in eos:
            self.finish_reason = "eos"
        elif stops.completed(params.stop, self.ids):
            self.finish_reason = "stop"
        elif len(self.ids) >= params.max_new_tokens:
            self.finish_reason = "length"


class ContinuousBatch:
    """The running rows of one model; row i of the list is row i of the cache.

    Of the queued rows those of the lowest priority number run first, and of these the ones with the shortest prompts:
    attention is padded to the longest row, so rows of like length are cheapest together.

    Args:
        model: a causal language model in eval mode.
        cache: keys and values of the rows.
        store: kept prefixes, None to compute every prompt whole.
        stops: finds stop strings.
        eos: ids that end an action.
        max_batch: most rows at a time.
        prefill_tokens: most prompt tokens in one forward; a longer prompt is computed alone.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: RowCache,
        store: PrefixStore | None,
        stops: StopStrings,
        eos: frozenset[int],
        *,
        max_batch: int,
        prefill_tokens: int,
    ) -> None:
        self._model, self._cache, self._store = model, cache, store
        self._stops, self._eos = stops, eos
        self._max_batch, self._prefill_tokens = max_batch, prefill_tokens
        self._queue: deque[Row] = deque()
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Queue a row."""
        self._queue.append(row)

    def forget_prefixes(self) -> None:
        """Drop every kept prefix."""
        if self._store is not None:
            self._store.clear()

    def clear(self) -> None:
        """Drop every row, queued or running, and every kept prefix: a step may have been left half done."""
        self._queue.clear()
        self.rows.clear()
        self.forget_prefixes()

    @property
    def busy(self) -> bool:
        """Whether any row is running or queued."""
        return bool(self.rows or self._queue)

    @property
    def size(self) -> int:
        """Rows that run, or will in the next step."""
        return min(len(self.rows) + len(self._queue), self._max_batch)

    @property
    def room(self) -> int:
        """Rows that could run besides those."""
        return self._max_batch - self.size

    def step(self) -> list[Row]:
        """Admit queued rows where there is room, sample one token for every row, and return the rows that are done."""
        self._admit()
        spans = [(row.computed, len(row.prompt) + len(row.ids)) for row in self.rows]
        ids = [token for row in self.rows for token in row.new_tokens()]
        ragged = RaggedTokens.lay_out(self._cache, spans)
        logits = self._model(
            input_ids=torch.tensor(ids, device=ragged.row.device)[None],
            position_ids=ragged.position[None],
            use_cache=False,
            logits_to_keep=ragged.last,
            ragged=ragged,
        ).logits[0]
        self._save_prompts()
        self._sample(logits)
        return self._retire()

    def _admit(self) -> None:
        """Move queued rows to the end of the running ones, with what is known of their prompts in place.

        A row waits for the next step when a row of this one computes the very block that it lacks.
        """
        if not self._queue or len(self.rows) >= self._max_batch:
            return
        first, tokens = len(self.rows), 0
        self._queue = deque(sorted(self._queue, key=lambda row: (row.request.priority, len(row.prompt))))
        slots: list[list[int]] = []
        waiting: list[Row] = []
        coming = set()
        while self._queue and len(self.rows) < self._max_batch:
            row = self._queue.popleft()
            known, missing = self._known(row)
            if missing in coming and len(known) > row.waited_at:
                row.waited_at = len(known)
                waiting.append(row)
                continue
            row.cached = row.computed = len(known) * self._cache.block
            tokens += len(row.prompt) - row.cached
            if tokens > self._prefill_tokens and slots:
                waiting.append(row)
                break
            if missing is not None:
                coming.add(missing)
            self.rows.append(row)
            slots.append(known)
        self._queue.extendleft(reversed(waiting))
        self._place(first, slots)

    def _known(self, row: Row) -> tuple[list[int], BlockKey | None]:
        if self._store is None:
            return [], None
        match = self._store.match(row.prompt)
        return match.slots, match.missing

    def _place(self, first: int, slots: list[list[int]]) -> None:
        """Bring the rows from ``first`` on into order, those with like remainders together, and load their prefixes."""
        new = self.rows[first:]
        order = sorted(range(len(new)), key=lambda i: new[i].computed - len(new[i].prompt))
        self.rows[first:] = [new[i] for i in order]
        longest = max(len(row.prompt) + row.request.params.max_new_tokens for row in new)
        self._cache.reserve(len(self.rows), longest)
        if self._store is not None:
            self._store.load([slots[i] for i in order], first)

    def _save_prompts(self) -> None:
        if self._store is not None:
            self._store.save([(i, row.prompt) for i, row in enumerate(self.rows) if not row.ids])

    def _sample(self, logits: Tensor) -> None:
        temperatures = [row.request.params.temperature for row in self.rows]
        tokens, logprobs = sample_tokens(logits, temperatures, [row.uniform() for row in self.rows])
        for row, token, logprob in zip(self.rows, tokens, logprobs, strict=True):
            row.computed = len(row.prompt) + len(row.ids)
            row.take(token, logprob, self._eos, self._stops)

    def _retire(self) -> list[Row]:
        """Take finished rows out, keep their prefixes, and close the gaps with rows from the end."""
        done = [i for i, row in enumerate(self.rows) if row.finish_reason is not None]
        finished = [self.rows[i] for i in done]
        if self._store is not None:  # the last token was sampled but not yet computed
            self._store.save([(i, self.rows[i].prompt + self.rows[i].ids[:-1]) for i in done])
        left = len(self.rows) - len(done)
        holes = [i for i in done if i < left]
        tail = [i for i in range(left, len(self.rows)) if self.rows[i].finish_reason is None]
        self._cache.move(tail, holes, max((len(self.rows[i].prompt) + len(self.rows[i].ids) for i in tail), default=0))
        for hole, i in zip(holes, tail, strict=True):
            self.rows[hole] = self.rows[i]
        del self.rows[left:]
        return finished
