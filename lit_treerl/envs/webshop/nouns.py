"""The nouns of product titles, by rules that need no download, or by spaCy's tagger.

The rules call a word a noun unless it is known not to be one: it holds a digit, is a single letter, a word of grammar,
a common adjective, adverb or colour, or ends as adjectives do. Names of brands count as nouns, as they do for a tagger.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from lit_treerl.envs.webshop.words import DEPARTMENTS

Nouns = Callable[[str], tuple[str, ...]]
"""A title in, its nouns out: lower case, in order, as often as they occur."""

SPACY_MODEL = "en_core_web_lg"  # the tagger of the original

_WORD = re.compile(r"[a-z][a-z']*[a-z](?![a-z0-9])")
_GRAMMAR = """
a an the this that these those and or nor but for of on in at by to from into onto with without within over under up
down off out per as than then so if not no yes all any both each every either neither more most less least much many few
several some such only own same other another is are was were be been being am do does did has have had can could may
might must shall should will would i you he she it we they me him her us them my your his its our their who whom whose
which what when where why how here there again very too also just ever never always often once plus via vs
one two three four five six seven eight nine ten
"""
_ADJECTIVES = """
red blue green black white grey gray pink brown yellow orange purple violet beige
big small large medium mini micro tiny huge giant tall short long wide narrow thin thick slim deep high low
new old young fresh hot cold warm cool dry wet soft hard firm smooth rough light heavy lightweight strong weak bright
dark clear clean pure plain simple easy quick fast slow quiet silent loud safe gentle mild rich raw real true
fine great good better best nice cute pretty lovely beautiful elegant classic modern vintage retro rustic fancy
cozy comfy comfortable crunchy creamy spicy salty stretchy sturdy fluffy silky shiny trendy sexy funny happy lucky
healthy tasty premium standard regular basic extra super ultra double single dual triple multi full half whole complete
compact portable universal digital electric electronic automatic manual wireless cordless solid hollow round square
flat oval casual formal professional personal daily outdoor indoor unisex male female adult natural organic vegan kosher
longlasting nonslip nonstick nontoxic backlit stackable
"""
_ADJECTIVE_END = re.compile(r".{2,}(?:able|ible|ful|less|ous|proof|resistant|friendly|free|ish|ary|ive|ical|ly|[^e]ed)")
_NOUNS_LIKE_ADJECTIVES = """
table cable vegetable bible jersey supply family jelly assembly fly lily belly butterfly diary library secretary
dictionary stationary olive drive hive archive detective bed feed seed shed sled fish dish polish relish radish
"""
_STILL_NOUNS = frozenset(_NOUNS_LIKE_ADJECTIVES.split())
_NOT_NOUNS = frozenset(f"{_GRAMMAR} {_ADJECTIVES}".split()) | {
    word for department in DEPARTMENTS for attribute in department.attributes for word in attribute.split()
}


def nouns_of(method: str) -> Nouns:
    """The method by name: ``rules``, ``spacy`` (model en_core_web_lg) or ``spacy:NAME`` for another installed model.

    Raises:
        ValueError: for another name, or where spaCy or its model is not installed.
    """
    if method == "rules":
        return rule_nouns
    name, _, model = method.partition(":")
    if name != "spacy":
        raise ValueError(f"nouns must be 'rules', 'spacy' or 'spacy:MODEL', got {method!r}")
    return _spacy_nouns(model or SPACY_MODEL)


@lru_cache(100_000)
def rule_nouns(title: str) -> tuple[str, ...]:
    """Nouns by rules.

    >>> rule_nouns("Acme 12 oz Insulated Water Bottle, Leak-proof and BPA free (Black)")
    ('acme', 'oz', 'water', 'bottle', 'leak', 'bpa')
    """
    return tuple(word for word in _WORD.findall(title.lower()) if _is_noun(word))


def _is_noun(word: str) -> bool:
    if word in _NOT_NOUNS or word in ("proof", "free", "friendly", "resistant", "washable"):
        return False
    return word in _STILL_NOUNS or _ADJECTIVE_END.fullmatch(word) is None


@lru_cache
def _spacy_nouns(model: str) -> Nouns:
    try:
        import spacy  # type: ignore[import-not-found]

        tagger = spacy.load(model)
    except (ImportError, OSError) as error:
        raise ValueError(
            f"nouns: spacy needs spaCy and its model {model} (pip install spacy; python -m spacy download {model}): "
            f"{error}; `nouns: rules` needs neither"
        ) from None

    @lru_cache(100_000)
    def nouns(title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in tagger(title) if token.pos_ in ("NOUN", "PROPN"))

    return nouns
