"""Scripted agents of the embedded world: a perfect one, and a noisy one that the seed policy imitates."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lit_treerl.data.embedded.questions import draw_task
from lit_treerl.data.embedded.relations import RELATIONS, Relation, decoy, relations_of
from lit_treerl.data.embedded.world import SPLITS, Fact, World, read_fact
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task

Search = Callable[[str], Sequence[str]]
"""A query in, the best passages out, each with or without its title line."""


@dataclass(frozen=True)
class Noise:
    """How often the noisy agent errs; probabilities per hop.

    The defaults leave reinforcement learning room: the agent's likeliest action at a rare word is the decoy.

    Attributes:
        common: it uses the right keyword for a common question word.
        rare: it uses the right keyword for a rare question word.
        decoy: a wrong keyword is the decoy relation's; otherwise it is any other of the subject's kind.
        stop: it answers before this hop (never before the first).
        retry: after a wrong keyword it searches for the same hop again.
        copy: it copies a wrong entity from the passages.
    """

    common: float = 0.93
    rare: float = 0.3
    decoy: float = 0.6
    stop: float = 0.02
    retry: float = 0.1
    copy: float = 0.01


def search_action(word: str, entity: str, relation: Relation) -> str:
    """The text of a turn that looks ``relation`` of ``entity`` up, because the question says ``word``."""
    return f"<think> next {word} </think> <search> {entity} {relation.keyword} </search>"


def answer_action(entity: str) -> str:
    """The text of the last turn."""
    return f"<think> done </think> <answer> {entity} </answer>"


def render_observation(passages: Sequence[str]) -> str:
    """What the agent sees after a search: the passages without their title lines."""
    text = " ".join(contents.rsplit("\n", 1)[-1] for contents in passages)
    return f" <information> {text or 'none'} </information> "


def perfect_action(task: Task, observations: Sequence[str] = ()) -> str:
    """Next action of an agent that knows every word and reads each entity from what it was shown.

    Args:
        task: an embedded task.
        observations: the texts that answered its actions so far, one each.

    Returns:
        A search for the next hop, or the answer after the last one. Where an observation does not state the
        fact that was searched for, the answer is ``none``.
    """
    entity = task.extra["chain"][0]
    for name, observation in zip(task.extra["relations"], observations, strict=False):
        _, found, rest = observation.partition(f"{entity} {RELATIONS[name].phrase} ")
        if not found:
            return answer_action("none")
        entity = rest.split(" .")[0]
    turn = len(observations)
    if turn >= task.extra["hops"]:
        return answer_action(entity)
    return search_action(task.extra["words"][turn], entity, RELATIONS[task.extra["relations"][turn]])


def noisy_episode(
    task: Task, search: Search, rng: random.Random, noise: Noise | None = None, max_turns: int = 8
) -> dict[str, Any]:
    """Run the noisy agent on one embedded task; returns an episode row (see :func:`demonstrations`)."""
    noise = noise or Noise()
    entity, hop, turns = task.extra["chain"][0], 0, []
    while hop < task.extra["hops"] and len(turns) < max_turns - 1:
        if hop and rng.random() < noise.stop:
            break
        word, wanted = task.extra["words"][hop], RELATIONS[task.extra["relations"][hop]]
        relation = _choose_relation(word, wanted, noise, rng)
        action = search_action(word, entity, relation)
        passages = search(f"{entity} {relation.keyword}")
        turns.append({"action": action, "observation": render_observation(passages)})
        if relation is not wanted and rng.random() < noise.retry:
            continue
        entity, hop = _read_entity(entity, relation, passages, noise, rng), hop + 1
    turns.append({"action": answer_action(entity), "observation": ""})
    return {
        "id": task.id,
        "data_source": task.data_source,
        "question": task.question,
        "prompt": list(task.prompt or ()),
        "turns": turns,
        "reward": float(entity in task.answers),
    }


def demonstrations(
    worlds: Sequence[int],
    n: int,
    seed: int = 0,
    search_factory: Callable[[list[dict[str, str]]], Search] | None = None,
    hops: Sequence[int] = (1, 2, 3, 4, 5, 6),
    noise: Noise | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield ``n`` episodes of the noisy agent over several worlds, all splits and all numbers of hops.

    Args:
        worlds: seeds of the worlds; leave the world of the tasks out.
        n: how many episodes.
        seed: of the questions and of the noise.
        search_factory: builds the search over a corpus; BM25, best two passages, by default.
        hops: numbers of hops to draw from; what is never demonstrated is hardly learned later.
        noise: how the agent errs.

    Yields:
        ``{"id", "data_source", "question", "prompt", "turns": [{"action", "observation"}, ...], "reward"}``.
    """
    rng = random.Random(derive_seed("embedded demonstrations", *worlds, seed))
    build = search_factory or bm25_search
    places = []
    for world_seed in worlds:
        world = World(world_seed)
        places.append((world, build(world.corpus())))
    for _ in range(n):
        world, search = rng.choice(places)
        task = draw_task(world, rng.choice(SPLITS), rng.choice(list(hops)), rng)
        yield noisy_episode(task, search, rng, noise)


def bm25_search(corpus: list[dict[str, str]], topk: int = 2) -> Search:
    """Search over ``corpus`` by BM25, as the environment does; returns the passages without their titles."""
    from lit_treerl.retrieval.bm25 import BM25Retriever

    retriever = BM25Retriever.from_rows(corpus, cache_size=100_000)
    retriever.setup()
    return lambda query: [passage.text for passage in retriever.search([query], topk)[0]]


def _choose_relation(word: str, wanted: Relation, noise: Noise, rng: random.Random) -> Relation:
    if rng.random() < (noise.common if word == wanted.common else noise.rare):
        return wanted
    confused = decoy(wanted)
    if rng.random() < noise.decoy:
        return confused
    return rng.choice([relation for relation in relations_of(wanted.subject) if relation not in (wanted, confused)])


def _read_entity(entity: str, relation: Relation, passages: Sequence[str], noise: Noise, rng: random.Random) -> str:
    """The entity to go on with: the searched fact's object, else what the passages say about the entity, or of any."""
    facts = [fact for contents in passages if (fact := read_fact(contents))]
    if not facts:
        return entity
    if rng.random() < noise.copy:
        fact = rng.choice(facts)
        return rng.choice((fact.subject, fact.object))

    def fit(fact: Fact) -> int:
        return 2 * (fact.subject == entity) + (fact.relation is relation)

    return max(facts, key=fit).object
