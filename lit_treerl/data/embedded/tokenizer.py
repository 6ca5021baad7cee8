"""The embedded policy's tokenizer: one token per word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lit_treerl.data.embedded.names import NAME_PARTS
from lit_treerl.data.embedded.relations import RELATIONS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
MAX_POSITIONS = 512
_TAGS = [f"<{slash}{tag}>" for tag in ("think", "search", "information", "answer") for slash in ("", "/")]
_OTHER = ["What", "is", "the", "of", "?", ".", "next", "done", "none"]
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def vocabulary() -> list[str]:
    """All words in the order of their ids: special tokens, tags, then words of questions and passages."""
    words = [PAD, EOS, UNK, *_TAGS, *_OTHER]
    for relation in RELATIONS.values():
        words += [*relation.phrase.split(), relation.keyword, relation.common, relation.rare]
    for first, second in NAME_PARTS.values():
        words += [*first, *second]
    return list(dict.fromkeys(words))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer as transformers knows it.

    Text is split at white space alone and decoding joins with spaces, so a text encoded in pieces (cut at white
    space) gives the same ids as the whole. The tags are ordinary words, unknown words become ``<unk>``, and the
    chat template renders nothing but the messages' contents.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = WordLevel({word: index for index, word in enumerate(vocabulary())}, unk_token=UNK)
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=_CHAT_TEMPLATE,
    )
