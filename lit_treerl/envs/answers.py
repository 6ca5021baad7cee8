"""Comparing answers: normalisation, exact match and token F1, as in the SQuAD evaluation."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})  # nearly right does not exist for these


def normalise(text: str) -> str:
    """Lower-case, strip punctuation, drop a/an/the, squeeze white space.

    >>> normalise("The  Beatles!")
    'beatles'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Iterable[str]) -> float:
    """1.0 when ``prediction`` equals any gold answer after normalisation, else 0.0.

    A text of which normalisation leaves nothing (``"A"``, ``"?"``) is compared by its squeezed lower-case form
    instead, and an empty prediction is never right: so no empty answer matches a gold answer such as "The".
    """
    mine = _comparable(prediction)
    return float(bool(mine) and any(mine == _comparable(gold) for gold in golds))


def f1(prediction: str, golds: Iterable[str]) -> float:
    """Largest token F1 between ``prediction`` and a gold answer; yes, no and noanswer must match exactly."""
    return max((_f1_single(_comparable(prediction), _comparable(gold)) for gold in golds), default=0.0)


def _comparable(text: str) -> str:
    return normalise(text) or " ".join(text.lower().split())


def _f1_single(prediction: str, gold: str) -> float:
    if prediction != gold and (prediction in _CLOSED or gold in _CLOSED):
        return 0.0
    mine, theirs = prediction.split(), gold.split()
    common = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * common / (len(mine) + len(theirs)) if common else 0.0
