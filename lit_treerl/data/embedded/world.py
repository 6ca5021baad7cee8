"""A readable synthetic knowledge base, generated from a seed: one passage of one sentence per fact."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, get_args

from lit_treerl.data.embedded.names import all_names
from lit_treerl.data.embedded.relations import KINDS, RELATIONS, Kind, Relation, relations_of
from lit_treerl.trees.seeding import derive_seed

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

_ENTITIES: dict[Kind, int] = {"person": 100, "town": 30, "nation": 10, "company": 30, "book": 40}
_SHARES: dict[Split, int] = {"train": 2, "validation": 1, "test": 1}


@dataclass(frozen=True)
class Fact:
    """``relation(subject) = object``."""

    subject: str
    relation: Relation
    object: str

    @property
    def sentence(self) -> str:
        """The fact in words; single spaces part them, the full stop too."""
        return f"{self.subject} {self.relation.phrase} {self.object} ."

    @property
    def contents(self) -> str:
        """The passage in the public form: the subject in double quotes as its title, then the sentence.

        The title is what makes retrieval work: a passage about an entity names it twice, one that only mentions
        it as an object names it once, so BM25 ranks the passages about a queried entity first.
        """
        return f'"{self.subject}"\n{self.sentence}'


class World:
    """Entities, facts and passages of one seed (2,920 facts).

    Entities of train, validation and test have disjoint names and every fact stays within its split, while one
    corpus holds them all. Equal seeds give equal worlds; other seeds draw other names and other facts.

    Attributes:
        seed: what it was generated from.
        entities: names by split and kind.
        facts: the fact of each (subject, relation name).
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        rng = random.Random(derive_seed("embedded world", seed))
        self.entities = _draw_entities(rng)
        self.facts: dict[tuple[str, str], Fact] = {}
        for by_kind in self.entities.values():
            for subject, relation in _subjects(by_kind):
                choices = [name for name in by_kind[relation.object] if name != subject]
                self.facts[subject, relation.name] = Fact(subject, relation, rng.choice(choices))
        self._order = list(self.facts.values())
        rng.shuffle(self._order)

    def corpus(self) -> list[dict[str, str]]:
        """All passages as ``{"id", "contents"}``, in an order that tells nothing."""
        return [{"id": str(index), "contents": fact.contents} for index, fact in enumerate(self._order)]


def read_fact(contents: str) -> Fact | None:
    """The fact that a passage states, with or without its title line; None where it states none."""
    sentence = contents.rsplit("\n", 1)[-1].strip().removesuffix(" .")
    for relation in RELATIONS.values():
        subject, found, value = sentence.partition(f" {relation.phrase} ")
        if found:
            return Fact(subject, relation, value)
    return None


def _draw_entities(rng: random.Random) -> dict[Split, dict[Kind, list[str]]]:
    entities: dict[Split, dict[Kind, list[str]]] = {split: {} for split in SPLITS}
    for kind in KINDS:
        names = all_names(kind)
        rng.shuffle(names)
        for split, share in _SHARES.items():
            entities[split][kind] = [names.pop() for _ in range(share * _ENTITIES[kind])]
    return entities


def _subjects(by_kind: dict[Kind, list[str]]) -> list[tuple[str, Relation]]:
    return [(name, relation) for kind in KINDS for name in by_kind[kind] for relation in relations_of(kind)]
