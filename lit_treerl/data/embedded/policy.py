"""The embedded policy: a Qwen3 small enough to train on one CPU core (about 0.65 MB in bfloat16)."""

from __future__ import annotations

from pathlib import Path

from lit_treerl.data.embedded.names import NAME_PARTS
from lit_treerl.data.embedded.relations import RELATIONS
from lit_treerl.data.word_policy import WordPolicy

SEED_POLICY = Path(__file__).parent / "seed_policy"
_TAGS = [f"<{slash}{tag}>" for tag in ("think", "search", "information", "answer") for slash in ("", "/")]
_OTHER = ["What", "is", "the", "of", "?", ".", "next", "done", "none"]


def words() -> list[str]:
    """Tags, then the words of questions and passages."""
    found = [*_TAGS, *_OTHER]
    for relation in RELATIONS.values():
        found += [*relation.phrase.split(), relation.keyword, relation.common, relation.rare]
    for first, second in NAME_PARTS.values():
        found += [*first, *second]
    return found


POLICY = WordPolicy(words())
"""3 layers of width 96, contexts of at most 512 words."""
