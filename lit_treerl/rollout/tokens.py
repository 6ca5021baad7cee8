"""Text to token ids, once: prompts through the chat template, observations as plain text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from lit_treerl.trees.task import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


KEPT = 4096  # texts and ids that are remembered: trees share prompts, and branches many an action and observation


class Tokens:
    """Encodes prompts and observations, decodes actions; sampled ids are never encoded again.

    Args:
        tokenizer: the policy's tokenizer. Without a chat template, message contents are joined by newlines.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._prompt, self._plain = lru_cache(KEPT)(self._render), lru_cache(KEPT)(self._encode)
        self._text = lru_cache(KEPT)(self._decode)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a chat prompt, ready for the assistant's turn (a closing assistant message is continued)."""
        return list(self._prompt(json.dumps(messages)))

    def observation(self, text: str, closing: str, limit: int | None) -> tuple[list[int], bool]:
        """Ids of an observation and whether ``text`` was cut so that all fits ``limit`` tokens.

        Strings that look like special tokens become plain text; ``closing`` is kept whole.
        """
        if not text and not closing:
            return [], False
        ids = self.plain(text + closing)
        if limit is None or len(ids) <= limit:
            return ids, False
        end = self.plain(closing)
        return self.plain(text)[: max(0, limit - len(end))] + end, True

    def plain(self, text: str) -> list[int]:
        """Ids of ``text`` in which no special token can appear."""
        return list(self._plain(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, without special tokens."""
        return self._text(tuple(ids))

    def _render(self, messages: str) -> tuple[int, ...]:
        chat: list[Message] = json.loads(messages)
        if not self.tokenizer.chat_template:
            return tuple(self.tokenizer.encode("\n".join(message["content"] for message in chat)))
        prefilled = chat[-1]["role"] == "assistant"
        ids = self.tokenizer.apply_chat_template(
            chat,  # type: ignore[arg-type]
            tokenize=True,
            return_dict=False,
            add_generation_prompt=not prefilled,
            continue_final_message=prefilled,
        )
        return tuple(int(i) for i in ids)  # type: ignore[union-attr]

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def _decode(self, ids: tuple[int, ...]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
