"""Rollouts whose environment answers late: ours against a lock-step driver over the same sampler.

    python -m benchmarks.rollout_latency [--tasks 32] [--more-tasks 256 1024] [--latency 0.2] [--repeats 3]
                                         [--out rollout_latency.json]

Every turn of the embedded world waits for a time drawn from a Pareto distribution (shape 1.3, cut at 40 times its
mean), the same for the same actions. Printed are medians and ranges of ratios, round by round: time of the lock-step
driver over ours, for chains and trees, and our time per sampled token of trees over that of as many chains as have the
same leaves; the last of these also for more tasks at once, whose work fills the time in which others wait. The last
lines count leaves for sampled and for computed tokens (sampled ones and prompts that the prefix
cache did not have), over those of chains, for several searches without latency.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.rollout_cost import LIMITS, embedded_env, ratio
from lit_treerl.data.embedded_search import EmbeddedTasks
from lit_treerl.envs.base import Environment, StepResult
from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.modeling.actor import Actor
from lit_treerl.policies import load_tokenizer, policy_path
from lit_treerl.rollout.grower import TreeGrower
from lit_treerl.rollout.stats import rollout_stats
from lit_treerl.rollout.tokens import Tokens
from lit_treerl.sampling.transformers import TransformersSampler
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Message, Task

SHAPE, CUT = 1.3, 40.0
CHAINS, TREES = TreeSearch(6, 0), TreeSearch(2, 2, 1)
SEARCHES = (TREES, TreeSearch(1, 4, 1), TreeSearch(2, 1, 2), TreeSearch(2, 4, 1), TreeSearch(1, 2, 3))


class LateEnvironment(Environment):
    """Another environment that waits before it answers.

    Args:
        env: the environment.
        mean: seconds of waiting; the mean of the distribution before it is cut.
    """

    runs_in = "threads"

    def __init__(self, env: SearchQA, mean: float) -> None:
        self.env, self.mean = env, mean
        self.context, self.stop, self.max_turns = env.context, env.stop, env.max_turns

    def spawn(self) -> Environment:
        twin = super().spawn()
        assert isinstance(twin, LateEnvironment)
        twin.env = self.env.spawn()  # type: ignore[assignment]
        return twin

    def snapshot(self) -> Any:
        return self.env.snapshot(), self._task, tuple(self._history)

    def restore(self, snapshot: Any) -> None:
        inner, self._task, history = snapshot
        self._history = list(history)
        self.env.restore(inner)

    def truncate(self) -> StepResult:
        return self.env.truncate()

    def _reset(self, task: Task) -> list[Message]:
        return self.env.reset(task)

    def _step(self, text: str) -> StepResult:
        assert self._task is not None
        rng = random.Random(derive_seed("latency", self._task.id, len(self._history), text))
        scale = self.mean * (SHAPE - 1) / SHAPE
        time.sleep(min(scale * rng.paretovariate(SHAPE), CUT * self.mean))
        return self.env.step(text)


class Bench:
    """The embedded policy in a sampler, and tasks."""

    def __init__(self, tasks: int, max_batch: int) -> None:
        torch.set_num_threads(1)
        self.tokens = Tokens(load_tokenizer("embedded"))
        self.tasks = EmbeddedTasks("train", tasks, hops=(2, 3, 4, 5, 6)).load()
        self.sampler = TransformersSampler(max_batch=max_batch)
        self.sampler.start(policy_path("embedded"), self.tokens.tokenizer, max_context=LIMITS.max_context)
        self.actor = Actor.from_pretrained(policy_path("embedded"))

    def run(self, env: Environment, search: TreeSearch, seed: int, lockstep: bool = False) -> dict[str, float]:
        """Seconds per sampled token and the rollout numbers; the prefix cache starts empty."""
        self.sampler.load_weights(self.actor.named_weights(), seed)
        self.sampler.reset_counters()
        limits = replace(LIMITS, env_workers=1024)
        start = time.perf_counter()
        grower = TreeGrower(
            self.sampler, env, self.tokens, search, limits, temperature=1.0, seed=seed, lockstep=lockstep
        )
        groups = grower.grow(self.tasks, [search.trees] * len(self.tasks))
        seconds = time.perf_counter() - start
        stats = rollout_stats(groups, self.sampler.reset_counters())
        computed = stats["rollout/sampled_tokens"] + stats["rollout/prompt_tokens"] - stats["rollout/cached_tokens"]
        return stats | {"seconds": seconds / stats["rollout/sampled_tokens"], "computed": computed}


def latency(bench: Bench, mean: float, repeats: int) -> dict[str, Any]:
    """Ours against lock-step, and trees against chains."""
    env = LateEnvironment(embedded_env(), mean)
    found = []
    for seed in range(repeats):
        ways = {(name, way): (search, way) for name, search in (("chains", CHAINS), ("trees", TREES)) for way in (0, 1)}
        order = list(ways) if seed % 2 else list(ways)[::-1]
        found.append({key: bench.run(env, ways[key][0], seed, bool(ways[key][1]))["seconds"] for key in order})
    return {
        "tasks": len(bench.tasks),
        "lock-step over ours, chains": ratio([f["chains", 1] / f["chains", 0] for f in found]),
        "lock-step over ours, trees": ratio([f["trees", 1] / f["trees", 0] for f in found]),
        "trees over chains, per sampled token": ratio([f["trees", 0] / f["chains", 0] for f in found]),
    }


def trees_over_chains(bench: Bench, mean: float, repeats: int) -> dict[str, Any]:
    """Trees against chains alone, for as many tasks as the bench has."""
    env = LateEnvironment(embedded_env(), mean)
    ratios = []
    for seed in range(repeats):
        order = (CHAINS, TREES) if seed % 2 else (TREES, CHAINS)
        seconds = {search: bench.run(env, search, seed)["seconds"] for search in order}
        ratios.append(seconds[TREES] / seconds[CHAINS])
    return {"tasks": len(bench.tasks), "trees over chains, per sampled token": ratio(ratios)}


def leaves(bench: Bench, repeats: int) -> list[dict[str, Any]]:
    """Leaves for sampled and for computed tokens, over those of as many chains as there are leaves."""
    env, rows = embedded_env(), []
    for search in SEARCHES:
        gains: dict[str, list[float]] = {"rollout/sampled_tokens": [], "computed": []}
        for seed in range(repeats):
            tree, chain = (bench.run(env, s, seed) for s in (search, TreeSearch(search.leaves_per_task, 0)))
            for name, values in gains.items():
                values.append(chain[name] / tree[name] * tree["rollout/leaves"] / chain["rollout/leaves"])
        rows.append(
            {
                "search": f"M={search.trees} N={search.expansions} L={search.rounds}",
                "leaves": search.leaves_per_task,
                "per sampled token": round(median(gains["rollout/sampled_tokens"]), 2),
                "per computed token": round(median(gains["computed"]), 2),
            }
        )
    return rows


def main() -> None:
    """Print a line for each result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--tasks", 32), ("--max-batch", 64), ("--repeats", 3)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--more-tasks", type=int, nargs="*", default=[256, 1024])
    parser.add_argument("--latency", type=float, default=0.2, help="mean seconds a turn")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    bench = Bench(given.tasks, given.max_batch)
    bench.run(embedded_env(), CHAINS, 0)  # warm
    rows: list[dict[str, Any]] = []

    def report(*found: dict[str, Any]) -> None:
        for row in found:
            print(json.dumps(row), flush=True)
        rows.extend(found)

    report(latency(bench, given.latency, given.repeats))
    for tasks in given.more_tasks:
        report(trees_over_chains(Bench(tasks, given.max_batch), given.latency, given.repeats))
    report(*leaves(bench, given.repeats))
    if given.out:
        given.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
