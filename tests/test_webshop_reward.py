"""WebShop's reward: hand-computed cases."""

from dataclasses import replace
from fractions import Fraction

import pytest

from lit_treerl.envs.webshop.nouns import nouns_of, rule_nouns
from lit_treerl.envs.webshop.reward import fold_color, has_attribute, has_option, purchase_reward, same, type_reward
from shop_cases import goal, products

MUG, SOFA, LAMP = products()


def words(title: str) -> tuple[str, ...]:
    """Every word counts as a noun, so that title scores can be read off."""
    return tuple(title.split())


@pytest.mark.parametrize(
    ("bought", "wanted", "alike", "expected"),
    [
        ("a b c", "a b c", False, 1.0),  # score 1
        ("a x", "a b c d", False, 1.0),  # 1/4, above 0.2
        ("a x", "a b c d e", False, 0.5),  # 1/5, not above 0.2
        ("a x", "a b c d e", True, 1.0),
        ("a", "a b c d e f g h i j", False, 0.5),  # 1/10, not below 0.1
        ("a", "a b c d e f g h i j k", False, 0.1),  # 1/11
        ("a", "a b c d e f g h i j k", True, 0.1),  # the same query does not help
        ("x", "a b", True, 0.0),  # no shared noun
        ("a", "a a", False, 0.5 * 2),  # 1/2: repeated nouns count in the length alone
        ("a", "a a a a a", False, 0.5),
        ("x", "", False, 0.5),  # no nouns: 0.2
        ("x", "", True, 1.0),
    ],
)
def test_type_reward(bought, wanted, alike, expected):
    product = replace(MUG, name=bought, query="q", product_category="x")
    asked = goal(MUG, name=wanted, query="q" if alike else "other", product_category="y")
    assert type_reward(product, asked, words) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [("A \u203a B", 0.5), ("Z \u203a C\u203aB", 1.0), ("C \u203a B \u203a A", 1.0), ("B \u203a B", 0.5)],
)
def test_two_shared_categories_make_products_alike(path, expected):
    product = replace(MUG, name="a", query="q", product_category="B \u203a C")
    asked = goal(MUG, name="a b c d e", query="other", product_category=path)
    assert type_reward(product, asked, words) == expected


def test_fuzzy_match_is_above_85_after_rounding():
    shared = "a" * 17
    assert not same(shared + "bbb", shared + "ccc")  # 85.0
    assert same("abcdefg", "abcdefx")  # 85.7, rounds to 86
    assert not same("a" * 47 + "b" * 8, "a" * 47 + "c" * 8)  # 85.45, rounds to 85
    assert same("red, Large!", "LARGE red")  # signs, case and order do not matter
    assert same("large", "extra large")  # a part of the words is enough
    assert not same("small", "large")


def test_attributes_are_close_to_a_known_one_or_stand_in_a_text():
    for attribute in ("leak proof", "leakproof", "double walled steel", "travel mug", "coffee hot", "steel fits"):
        assert has_attribute(MUG, attribute), attribute
    for attribute in ("machine washable", "Steel Fits"):  # texts are lower case, goals are taken as they are
        assert not has_attribute(MUG, attribute), attribute


def test_options():
    assert has_option({"color": "dark navy"}, "navy stripes")  # both fold to navy
    assert not has_option({"color": "red"}, "blue")
    assert has_option({"color": "red", "size": "12 oz"}, "12 oz")
    assert not has_option({}, "red")
    assert has_option({"color": "red"}, ("color", "red"))
    assert not has_option({"color": "navy stripes"}, ("color", "dark blue"))
    assert not has_option({"color": "light navy"}, ("color", "dark blue navvy"))  # a pair's colour is not folded
    assert fold_color("covered") == "red"  # a part of the text, as in the original


@pytest.mark.parametrize(
    ("attributes", "options", "cap", "chosen", "expected"),
    [
        ((), (), 30.0, {}, 1),
        ((), (), 5.0, {}, 0),
        (("leak proof",), (), 30.0, {}, 1),
        (("leak proof", "vegan"), (), 30.0, {}, Fraction(2, 3)),
        (("leak proof",), ("red",), 30.0, {}, Fraction(2, 3)),
        (("leak proof",), ("red",), 30.0, {"color": "red"}, 1),
        (("leak proof",), ("red",), 5.0, {"color": "red"}, Fraction(2, 3)),
        (("vegan",), ("blue", "12 oz"), 30.0, {"color": "red", "size": "12 oz"}, Fraction(2, 4)),
        (("leak proof",), (("color", "red"), ("size", "12 oz")), 30.0, {"color": "red"}, Fraction(3, 4)),
    ],
)
def test_purchase_reward(attributes, options, cap, chosen, expected):
    assert 10 <= MUG.price <= 25.5
    asked = goal(MUG, attributes=attributes, options=options, price_cap=cap)
    assert purchase_reward(MUG, asked, chosen, rule_nouns) == float(expected)
    other_kind = replace(asked, name="Sofa", query="sofas", product_category="x")
    assert purchase_reward(MUG, other_kind, chosen, rule_nouns) == 0


def test_a_price_at_the_cap_is_low_enough():
    asked = goal(LAMP, price_cap=1299.0)
    assert purchase_reward(LAMP, asked, {}, rule_nouns) == 1.0
    assert purchase_reward(LAMP, replace(asked, price_cap=1298.99), {}, rule_nouns) == 0.0


@pytest.mark.parametrize(
    ("title", "nouns"),
    [
        (
            "Amazon Brand Women's Soft Cotton Crewneck Sweater, Large, Red",
            "amazon brand women's cotton crewneck sweater",
        ),
        ("2 Pack Waterproof LED String Lights for Outdoor Use", "pack led string lights use"),
        ("Washable, Non-Slip and Stain-Resistant Area Rug 5x7", "non slip stain area rug"),
        ("", ""),
        ("Very Soft and Comfortable", ""),
        ("Wooden Coffee Table with Storage", "coffee table storage"),
    ],
)
def test_nouns_by_rules(title, nouns):
    assert rule_nouns(title) == tuple(nouns.split())


def test_spacy_is_asked_for_by_name():
    with pytest.raises(ValueError, match="'rules', 'spacy' or 'spacy:MODEL', got 'tagger'"):
        nouns_of("tagger")
    with pytest.raises(ValueError, match=r"no_such_model.*`nouns: rules` needs neither"):
        nouns_of("spacy:no_such_model")
