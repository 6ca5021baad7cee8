"""Questions of one to six hops over an embedded world."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lit_treerl.data.embedded.relations import KINDS, RELATIONS, relations_of
from lit_treerl.data.embedded.world import SPLITS, Split, World
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task

_PATIENCE = 1000  # draws in a row without a new question


def embedded_tasks(split: Split, n: int, hops: Sequence[int] = (1, 2, 3, 4, 5, 6), seed: int = 0) -> list[Task]:
    """Draw ``n`` distinct questions of one split; the numbers of hops take turns.

    A longer list with the same other arguments begins with the shorter one.

    Args:
        split: ``train``, ``validation`` or ``test``; their entities are disjoint.
        n: how many questions.
        hops: numbers of hops, 1 to 6.
        seed: of the world (pass the corpus of ``World(seed)`` to the retriever) and of the draw.

    Raises:
        ValueError: for an unknown split, for hops out of range, or when the world holds too few such questions.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; known are {', '.join(SPLITS)}")
    if not hops or not all(1 <= h <= 6 for h in hops):
        raise ValueError(f"hops must be numbers from 1 to 6, got {list(hops)}")
    return draw_tasks(World(seed), split, n, hops, random.Random(derive_seed("embedded questions", split, seed)))


def draw_tasks(world: World, split: Split, n: int, hops: Sequence[int], rng: random.Random) -> list[Task]:
    """As :func:`embedded_tasks`, over a given world and with a given source of randomness."""
    tasks: dict[str, Task] = {}
    missed = 0
    while len(tasks) < n and missed < _PATIENCE:
        task = draw_task(world, split, hops[len(tasks) % len(hops)], rng)
        missed = missed + 1 if task.question in tasks else 0
        tasks.setdefault(task.question, task)
    if len(tasks) < n:
        raise ValueError(
            f"found only {len(tasks)} distinct {split} questions with {list(hops)} hops, {n} were asked for"
        )
    return list(tasks.values())


def draw_task(world: World, split: Split, hops: int, rng: random.Random) -> Task:
    """Draw one question whose chain of entities repeats none.

    ``extra`` holds ``hops``, ``chain`` (hops + 1 entities from the one named in the question to the answer),
    ``relations`` (names, in the order of the chain) and ``words`` (the question word of each relation).
    """
    chain, relations = _draw_chain(world, split, hops, rng)
    words = [rng.choice((RELATIONS[name].common, RELATIONS[name].rare)) for name in relations]
    question = f"What is {''.join(f'the {word} of ' for word in reversed(words))}{chain[0]} ?"
    return Task(
        id=f"embedded-{split}-{derive_seed(question, *chain):016x}",
        data_source=f"embedded_{hops}hop",
        question=question,
        answers=(chain[-1],),
        prompt=({"role": "user", "content": question},),
        extra={"hops": hops, "chain": chain, "relations": relations, "words": words},
    )


def _draw_chain(world: World, split: Split, hops: int, rng: random.Random) -> tuple[list[str], list[str]]:
    while True:
        kind = rng.choice(KINDS)
        chain, relations = [rng.choice(world.entities[split][kind])], []
        for _ in range(hops):
            relation = rng.choice(relations_of(kind))
            chain.append(world.facts[chain[-1], relation.name].object)
            relations.append(relation.name)
            kind = relation.object
        if len(set(chain)) == len(chain):
            return chain, relations
