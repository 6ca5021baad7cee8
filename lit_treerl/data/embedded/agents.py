"""Scripted agents of the embedded world: a perfect one, and a noisy one that the seed policy imitates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lit_treerl.data.embedded.relations import RELATIONS, Relation, decoy, relations_of
from lit_treerl.data.embedded.world import Fact, read_fact
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
    """Run the noisy agent on one embedded task; returns an episode row, as ``demonstrations`` yields it."""
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
