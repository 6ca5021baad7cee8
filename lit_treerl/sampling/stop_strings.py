"""Finding stop strings in what was sampled, at the cost of a set look-up for most tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REMEMBERED = 1 << 14  # tails of sampled ids whose texts are kept: actions often end alike
PARTIAL = "\N{REPLACEMENT CHARACTER}"  # a decoder's mark for bytes that are not a whole character


class StopStrings:
    """Tells when the newest token completes a stop string.

    Args:
        tokenizer: decodes; special tokens count as text.
        vocab_size: number of ids the model can sample.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._texts: list[str] = []
        self._enders: dict[tuple[str, ...], frozenset[int]] = {}
        self._text = lru_cache(REMEMBERED)(self._decode)

    def completed(self, stop: tuple[str, ...], ids: Sequence[int]) -> bool:
        """Whether the last of the sampled ``ids`` completes one of ``stop``; asked after every token."""
        if not stop or not ids or ids[-1] not in self._ending(stop):
            return False
        text = self._text(tuple(ids[self._tail_start(ids, max(map(len, stop))) :]))
        return any(string in text for string in stop)

    def _decode(self, ids: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _ending(self, stop: tuple[str, ...]) -> frozenset[int]:
        """The ids whose text could hold the last character of a stop string."""
        if stop not in self._enders:
            self._texts = self._texts or token_texts(self._tokenizer, self._vocab_size)
            last = {string[-1] for string in stop} | {PARTIAL}
            self._enders[stop] = frozenset(i for i, text in enumerate(self._texts) if not last.isdisjoint(text))
        return self._enders[stop]

    def _tail_start(self, ids: Sequence[int], characters: int) -> int:
        """Where a tail of at least ``characters`` characters begins, with a few tokens to spare."""
        start = len(ids)
        while start > 0 and characters > 0:
            start -= 1
            characters -= len(self._texts[ids[start]].replace(PARTIAL, ""))
        return max(0, start - 4)


def token_texts(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> list[str]:
    """The text each id adds after an ordinary token; decoders treat the first token of a text specially."""
    before = tokenizer.encode("a", add_special_tokens=False)[-1:]
    pairs = [[*before, i] for i in range(min(vocab_size, len(tokenizer)))]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        texts = backend.decode_batch(pairs, skip_special_tokens=False)
        head = backend.decode(before, skip_special_tokens=False)
    else:
        texts = [tokenizer.decode(pair, clean_up_tokenization_spaces=False) for pair in pairs]
        head = tokenizer.decode(before, clean_up_tokenization_spaces=False)
    known = [str(text).removeprefix(str(head)) for text in texts]
    return known + [""] * (vocab_size - len(known))
