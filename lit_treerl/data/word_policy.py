"""Policies small enough to train on one CPU core, whose tokens are the words of a small world."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3Config

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_TAG_WORD_OR_SIGN = r"</?\w+>|\w+|[^\w\s]"


@dataclass(frozen=True)
class WordPolicy:
    """A Qwen3 over a closed list of words.

    Attributes:
        words: of the world, tags included; special tokens come before them.
        max_positions: longest context in tokens.
        hidden: width.
        layers: how many.
        heads: of attention, 32 wide (which vLLM takes on a CPU too), with one key and value head.
        punctuation: signs and tags are tokens of their own wherever they stand; else text is cut at white space alone.
    """

    words: Sequence[str]
    max_positions: int = 512
    hidden: int = 96
    layers: int = 3
    heads: int = 3
    punctuation: bool = False

    def vocabulary(self) -> list[str]:
        """All words in the order of their ids."""
        return list(dict.fromkeys((PAD, EOS, UNK, *self.words)))

    def fingerprint(self) -> str:
        """Tells policies apart that would be initialised differently."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:8]

    def config(self) -> Qwen3Config:
        """The model's configuration."""
        from transformers import Qwen3Config

        words = self.vocabulary()
        return Qwen3Config(
            vocab_size=len(words),
            hidden_size=self.hidden,
            intermediate_size=self.hidden * 8 // 3,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=self.max_positions,
            tie_word_embeddings=True,
            attention_dropout=0.0,
            use_sliding_window=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            pad_token_id=words.index(PAD),
            eos_token_id=words.index(EOS),
            bos_token_id=None,
        )

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer as transformers knows it.

        Decoding joins with spaces, so a text encoded in pieces (cut at white space) gives the same ids as the whole.
        The tags are ordinary words, unknown words become ``<unk>``, and the chat template renders nothing but the
        messages' contents.
        """
        from tokenizers import Regex, Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import Split, WhitespaceSplit
        from transformers import PreTrainedTokenizerFast

        words = WordLevel({word: index for index, word in enumerate(self.vocabulary())}, unk_token=UNK)
        tokenizer = Tokenizer(words)
        signs = Split(Regex(_TAG_WORD_OR_SIGN), behavior="removed", invert=True)
        tokenizer.pre_tokenizer = signs if self.punctuation else WhitespaceSplit()  # type: ignore[assignment]
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token=PAD,
            eos_token=EOS,
            unk_token=UNK,
            model_max_length=self.max_positions,
            clean_up_tokenization_spaces=False,
            chat_template=_CHAT_TEMPLATE,
        )

    def init(self, folder: str | Path, seed: int = 0) -> Path:
        """Write it randomly initialised, as a Hugging Face folder; equal seeds, equal weights."""
        import torch
        from transformers import Qwen3ForCausalLM

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Qwen3ForCausalLM(self.config()).bfloat16()
        model.save_pretrained(folder)
        self.tokenizer().save_pretrained(folder)
        return Path(folder)
