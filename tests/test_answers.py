"""Normalisation, exact match and F1 against hand-computed values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.envs.answers import exact_match, f1, normalise


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The  Beatles!", "beatles"),
        ("  An apple,\ta day ", "apple day"),
        ("U.S.A.", "usa"),
        ("theory of a thing", "theory of thing"),
        ("Zürich", "zürich"),
        ("a an the", ""),
        ("?!", ""),
    ],
)
def test_normalise(text, plain):
    assert normalise(text) == plain


@given(st.text())
def test_normalise_twice_only_drops_more_articles(text):
    once = normalise(text)
    assert set(normalise(once).split()) <= set(once.split())
    assert "  " not in once
    assert once == once.strip()


@pytest.mark.parametrize(
    ("prediction", "golds", "em"),
    [
        ("the Beatles", ["Queen", "Beatles."], 1.0),
        ("Beatles band", ["Beatles"], 0.0),
        ("", ["The"], 0.0),  # nothing left of either
        ("?", ["The"], 0.0),
        ("a", ["A"], 1.0),  # the grade, the letter
        ("an", ["A"], 0.0),
        ("", [""], 0.0),
        ("x", [], 0.0),
    ],
)
def test_exact_match(prediction, golds, em):
    assert exact_match(prediction, golds) == em


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("Ada Lovelace", ["ada lovelace"], 1.0),
        ("Countess Ada Lovelace", ["Ada Lovelace"], 2 * 2 / 5),
        ("Ada", ["Lovelace", "Ada King Lovelace"], 2 * 1 / 4),  # the best gold answer
        ("x x y", ["x y y"], 2 * 2 / 6),  # counted with multiplicity
        ("yes it is", ["yes"], 0.0),
        ("no", ["no way"], 0.0),
        ("Yes.", ["yes"], 1.0),
        ("noanswer at all", ["noanswer"], 0.0),
        ("", ["x"], 0.0),
        ("the", ["The"], 1.0),
        ("x", [], 0.0),
    ],
)
def test_f1(prediction, golds, score):
    assert f1(prediction, golds) == pytest.approx(score)


WORDS = st.lists(st.sampled_from(["a", "the", "x", "y", "yes", "no", "?", ""]), max_size=5).map(" ".join)


@given(WORDS, st.lists(WORDS, max_size=3))
def test_f1_is_at_least_em_and_at_most_one(prediction, golds):
    assert exact_match(prediction, golds) <= f1(prediction, golds) <= 1.0


@given(WORDS, WORDS)
def test_both_are_symmetric(first, second):
    assert exact_match(first, [second]) == exact_match(second, [first])
    assert f1(first, [second]) == f1(second, [first])
