"""What the passages of the embedded world can say: 16 functional relations over five kinds of entities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["person", "town", "nation", "company", "book"]
KINDS: tuple[Kind, ...] = ("person", "town", "nation", "company", "book")


@dataclass(frozen=True)
class Relation:
    """A function from entities of one kind to entities of another.

    Attributes:
        name: its name in the code.
        subject: kind of the entities it is defined on.
        object: kind of its values.
        phrase: the words between subject and object in a passage.
        keyword: the word of ``phrase`` that a good query uses.
        common: the question word that the seed policy understands.
        rare: a second question word of the same meaning, which the seed policy mostly gets wrong.
    """

    name: str
    subject: Kind
    object: Kind
    phrase: str
    keyword: str
    common: str
    rare: str


_ALL = (
    Relation("birth", "person", "town", "was born in", "born", "birthplace", "hometown"),
    Relation("employer", "person", "company", "works for", "works", "employer", "workplace"),
    Relation("spouse", "person", "person", "is married to", "married", "spouse", "partner"),
    Relation("teacher", "person", "person", "was taught by", "taught", "teacher", "mentor"),
    Relation("founder", "company", "person", "was founded by", "founded", "founder", "creator"),
    Relation("seat", "company", "town", "is based in", "based", "headquarters", "location"),
    Relation("owner", "company", "person", "is owned by", "owned", "owner", "proprietor"),
    Relation("country", "town", "nation", "lies in", "lies", "country", "nation"),
    Relation("mayor", "town", "person", "is governed by", "governed", "mayor", "chief"),
    Relation("planner", "town", "person", "was planned by", "planned", "planner", "architect"),
    Relation("author", "book", "person", "was written by", "written", "author", "writer"),
    Relation("publisher", "book", "company", "was printed by", "printed", "publisher", "printer"),
    Relation("setting", "book", "town", "is set in", "set", "setting", "scene"),
    Relation("capital", "nation", "town", "is ruled from", "ruled", "capital", "metropolis"),
    Relation("president", "nation", "person", "is led by", "led", "president", "leader"),
    Relation("poet", "nation", "person", "is praised by", "praised", "poet", "bard"),
)
RELATIONS: dict[str, Relation] = {relation.name: relation for relation in _ALL}


def relations_of(kind: Kind) -> list[Relation]:
    """Relations defined on entities of ``kind``, in a fixed order; every kind has at least three."""
    return [relation for relation in _ALL if relation.subject == kind]


def decoy(relation: Relation) -> Relation:
    """The relation of the same subject kind that a noisy agent confuses ``relation`` with most often.

    Decoys permute the relations of a kind without a fixed point, so no keyword is likelier than another.
    """
    siblings = relations_of(relation.subject)
    return siblings[(siblings.index(relation) + 1) % len(siblings)]
