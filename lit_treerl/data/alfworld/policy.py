"""The embedded policy for ALFWorld: a Qwen3 over the words of its games (about 1.5 MB in bfloat16)."""

from __future__ import annotations

import re

from lit_treerl.data.alfworld.thoughts import THOUGHTS
from lit_treerl.data.word_policy import WordPolicy

_TAGS = [f"<{slash}{tag}>" for tag in ("think", "action") for slash in ("", "/")]
_NUMBERS = [str(number) for number in range(1, 21)]
_SIGNS = [".", ",", ":", "'", "-"]
_OTHER = """
    You are in the middle of a room Looking quickly around you Next see nothing arrive at The is closed open In
    it and an On pick up from move to turn on go take close examine use clean heat cool with using look
    inventory carrying not Nothing happens There Your task facing next are's this cold hot hand held no command
    between
"""


def words() -> list[str]:
    """Words of tags, thoughts, texts and goals, and the kinds of things.

    Raises:
        ImportError: where alfworld is not installed.
    """
    from lit_treerl.envs.alfworld.downward import installed

    constants, goals = installed("alfworld.gen.constants"), installed("alfworld.gen.goal_library")
    kinds = sorted({kind.lower() for kind in (*constants.OBJECTS, *constants.RECEPTACLES)})
    told = [text for goal in goals.gdict.values() for text in goal["templates"]]
    told = re.findall(r"[A-Za-z]+", " ".join(re.sub(r"\{\w*\}", " ", text) for text in told))
    return [*_TAGS, *_SIGNS, *_NUMBERS, *_OTHER.split(), *" ".join(THOUGHTS).split(), *sorted(set(told)), *kinds]


POLICY = WordPolicy(words(), max_positions=1024, hidden=128, layers=4, heads=4, punctuation=True)
