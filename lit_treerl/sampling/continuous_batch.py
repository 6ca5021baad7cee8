"""Continuous batching: rows join and leave a running batch, and prompts start from what is already computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_treerl.sampling.base import FinishReason, Request
from lit_treerl.sampling.decode import sample_tokens
from lit_treerl.sampling.kv_cache import PrefixStore, RowCache
from lit_treerl.sampling.stop_strings import StopStrings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


PADDING = 256  # tokens of padding that cost no more than another forward


class Row:
    """One request on its way."""

    __slots__ = ("cached", "finish_reason", "ids", "logprobs", "prompt", "request", "uniform", "waited_at")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.prompt = list(request.prompt_ids)
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.uniform = Random(request.seed).random
        self.finish_reason: FinishReason | None = None
        self.cached = 0
        self.waited_at = -1  # known blocks when the row last waited for another one's prompt

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

    Args:
        model: a causal language model in eval mode.
        cache: keys and values of the rows.
        store: kept prefixes, None to compute every prompt whole.
        stops: finds stop strings.
        eos: ids that end an action.
        max_batch: most rows at a time.
        prefill_tokens: most tokens of prompts, padding included, in one forward.
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

    def admit(self) -> list[Row]:
        """Start queued rows as long as there is room; returns those whose first token was their last."""
        finished = []
        while self._queue and len(self.rows) < self._max_batch:
            finished += self._start(*self._next_wave(self._max_batch - len(self.rows)))
        return finished

    def step(self) -> list[Row]:
        """Sample one more token for every running row; returns the rows that are done."""
        tokens = [[row.ids[-1]] for row in self.rows]
        positions = [[len(row.prompt) + len(row.ids) - 1] for row in self.rows]
        logits = self._forward(0, tokens, positions, positions)
        self._accept(self.rows, logits)
        return self._retire()

    def _next_wave(self, room: int) -> tuple[list[Row], list[list[int]]]:
        """Take rows from the queue with the slots of their known blocks.

        A row waits for the next wave when a row of this one computes the very block that it lacks.
        """
        wave: list[Row] = []
        slots: list[list[int]] = []
        waiting: list[Row] = []
        coming = set()
        while self._queue and len(wave) < room:
            row = self._queue.popleft()
            known: list[int] = []
            if self._store is not None:
                known, missing = (match := self._store.match(row.prompt)).slots, match.missing
                if missing in coming and len(known) > row.waited_at:
                    row.waited_at = len(known)
                    waiting.append(row)
                    continue
                if missing is not None:
                    coming.add(missing)
            row.cached = len(known) * self._cache.block
            wave.append(row)
            slots.append(known)
        self._queue.extendleft(reversed(waiting))
        return wave, slots

    def _start(self, wave: list[Row], slots: list[list[int]]) -> list[Row]:
        order = sorted(range(len(wave)), key=lambda i: wave[i].cached - len(wave[i].prompt))
        wave, slots = [wave[i] for i in order], [slots[i] for i in order]
        first = len(self.rows)
        longest = max(len(row.prompt) + row.request.params.max_new_tokens for row in wave)
        self._cache.reserve(first + len(wave), longest)
        if self._store is not None:
            self._store.load(slots, first)
        logits = [self._prefill(first + start, wave[start:stop]) for start, stop in self._chunks(wave)]
        self.rows += wave
        if self._store is not None:
            self._store.save([(first + i, row.prompt) for i, row in enumerate(wave)])
        self._accept(wave, torch.cat(logits))
        return self._retire()

    def _chunks(self, wave: list[Row]) -> Iterator[tuple[int, int]]:
        """Cut rows, longest remainder first, so that padding and memory stay bounded."""
        start = 0
        while start < len(wave):
            longest = len(wave[start].prompt) - wave[start].cached
            stop = start + 1
            padding = 0
            while stop < len(wave) and (stop + 1 - start) * longest <= self._prefill_tokens:
                padding += longest - (len(wave[stop].prompt) - wave[stop].cached)
                if padding > max(PADDING, (stop + 1 - start) * longest // 4):
                    break
                stop += 1
            yield start, stop
            start = stop

    def _prefill(self, first: int, rows: list[Row]) -> Tensor:
        width = max(len(row.prompt) - row.cached for row in rows)
        tokens, positions, writes = [], [], []
        for row in rows:
            new = list(range(row.cached, len(row.prompt)))
            padding = width - len(new)  # on the left, so that the last column is everyone's last token
            tokens.append([0] * padding + row.prompt[row.cached :])
            positions.append([0] * padding + new)
            writes.append([self._cache.dump] * padding + new)
        return self._forward(first, tokens, positions, writes)

    def _forward(
        self, first: int, tokens: list[list[int]], positions: list[list[int]], writes: list[list[int]]
    ) -> Tensor:
        """Logits [n, V] after the last column of ``tokens`` [n, Q], for the rows from ``first`` on."""
        device = self._cache.data.device
        ids, position, write = (torch.tensor(x, device=device) for x in (tokens, positions, writes))
        end = max(line[-1] for line in positions) + 1
        mask = torch.arange(end, device=device) <= position[:, None, :, None]
        self._cache.open(first, write, end)
        return self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=position,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]

    def _accept(self, rows: Sequence[Row], logits: Tensor) -> None:
        temperatures = [row.request.params.temperature for row in rows]
        tokens, logprobs = sample_tokens(logits, temperatures, [row.uniform() for row in rows])
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
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
