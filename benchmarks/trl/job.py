"""What both sides share: settings, questions and environment of the embedded world, the examination, the clock."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
import yaml

from lit_treerl.data.embedded_search import EmbeddedRetriever, EmbeddedTasks
from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.policies import load_tokenizer, policy_path
from lit_treerl.rollout.grower import RolloutLimits, TreeGrower
from lit_treerl.rollout.tokens import Tokens
from lit_treerl.sampling.transformers import TransformersSampler
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup

Side = Literal["trl", "grpo", "tree_grpo"]
Scaling = Literal["group", "batch", "none"]
Point = dict[str, float]
"""Where a run stood at one examination: seconds, cpu, rollout (seconds of it), tokens, em."""

POLICY = "embedded"
GROUP, STEPS, BETAS, CLIP, DUAL_CLIP = 4, 2, (0.9, 0.99), 0.2, 3.0
CONFIGS = Path(__file__).parents[2] / "configs"


@dataclass(frozen=True)
class Job:
    """One run.

    Args:
        side: whose code trains, and on what.
        seed: of the run.
        target: exact match on the validation questions at which it ends.
        max_tokens: sampled tokens after which it ends too.
        scaling: what a group's centred rewards are divided by.
        lr: learning rate.
        tasks: questions of an iteration.
        validation: validation questions.
    """

    side: Side
    seed: int
    target: float = 0.3
    max_tokens: int = 60_000
    scaling: Scaling = "group"
    lr: float = 6e-4
    tasks: int = 32
    validation: int = 200


class World:
    """The embedded world as configs/env, configs/embedded and configs/embedded/data.yaml set it up."""

    def __init__(self, validation: int = 200) -> None:
        data = _config("embedded/data.yaml")["init_args"]
        self.train = EmbeddedTasks(**data["train"]["init_args"]).load()
        self.validation = EmbeddedTasks(**(data["validation"]["init_args"] | {"n": validation})).load()
        settings: dict[str, Any] = dict(_config("env/embedded.yaml")["init_args"], retriever=EmbeddedRetriever())
        self.env = SearchQA(**settings)
        self.env.setup()
        self.limits = RolloutLimits(**_config("embedded/rollout.yaml")["limits"])
        self.tokens = Tokens(load_tokenizer(POLICY))

    def order(self, seed: int) -> list[Task]:
        """The training questions in the order in which a run of this project with that seed asks them."""
        order = list(range(len(self.train)))
        random.Random(derive_seed(seed, "order", 0)).shuffle(order)
        return [self.train[i] for i in order]


def _config(name: str) -> Any:
    return yaml.safe_load((CONFIGS / name).read_text(encoding="utf-8"))


class Sampling:
    """This project's sampler on the embedded policy, to examine weights and to roll out a batch of chains."""

    def __init__(self, world: World) -> None:
        self.world, self.sampler, self.loaded = world, TransformersSampler(), 0
        self.sampler.start(policy_path(POLICY), world.tokens.tokenizer, max_context=world.limits.max_context)

    def chains(self, tasks: Sequence[Task], count: int, temperature: float, seed: int = 0) -> list[RolloutGroup]:
        """``count`` chains of every task."""
        search = TreeSearch(trees=count, expansions=0)
        world = self.world
        grower = TreeGrower(
            self.sampler, world.env, world.tokens, search, world.limits, temperature=temperature, seed=seed
        )
        return grower.grow(tasks, [count] * len(tasks))

    def exact_match(self, weights: Iterable[tuple[str, torch.Tensor]]) -> float:
        """Greedy exact match of these weights on the validation questions."""
        self.loaded += 1
        self.sampler.load_weights(weights, self.loaded)
        groups = self.chains(self.world.validation, 1, temperature=0.0)
        return fmean(float(tree.info[leaf]["em"]) for group in groups for tree, leaf in group.leaves())


@dataclass
class Clock:
    """Counts wall and processor seconds while it runs, and keeps what the examinations said."""

    seconds: float = 0.0
    cpu: float = 0.0
    points: list[Point] = field(default_factory=list)
    since: tuple[float, float] | None = None

    def start(self) -> None:
        """Count from now on."""
        self.since = (time.perf_counter(), time.process_time())

    def stop(self) -> None:
        """Count no more; nothing where it stands."""
        if self.since is not None:
            self.seconds += time.perf_counter() - self.since[0]
            self.cpu += time.process_time() - self.since[1]
            self.since = None

    def note(self, em: float, tokens: float, rollout: float) -> None:
        """Keep an examination made while it stood."""
        self.points.append({"seconds": self.seconds, "cpu": self.cpu, "rollout": rollout, "tokens": tokens, "em": em})
