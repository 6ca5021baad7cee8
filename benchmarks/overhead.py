"""Where an iteration's time goes on the embedded default, and how much of it outside model, sampler and environment.

    python -m benchmarks.overhead [--config configs/tree_grpo.yaml] [--iterations 6] [--out overhead.json]

Runs `fit` without validation and times what is called, each call less the calls within it. "model" is forward, backward
and optimizer, "sampler" its own work between requests and completions, weights included. The first iteration warms up.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_treerl import actor_critic, cli, module, policy_module
from lit_treerl.algorithms.leafwise import LeafwiseEstimator
from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.envs.base import Environment
from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.modeling.actor import Actor
from lit_treerl.modeling.critic import Critic
from lit_treerl.modeling.tree_blocks import TreeBlocks
from lit_treerl.rollout.grower import TreeGrower
from lit_treerl.rollout.tokens import Tokens
from lit_treerl.sampling.transformers import TransformersSampler

INSIDE = ("model", "sampler", "environment")


class Clock:
    """Seconds by part, each without those of the parts called within it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._within: list[float] = []
        self.started = 0.0

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Time ``owner.name``."""
        plain: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(plain)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._within.append(0.0)
            start = time.perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                spent = time.perf_counter() - start
                self.seconds[part] += spent - self._within.pop()
                if self._within:
                    self._within[-1] += spent

        static = isinstance(owner.__dict__.get(name) if isinstance(owner, type) else None, classmethod)
        setattr(owner, name, staticmethod(timed) if static else timed)

    def begin(self) -> None:
        """Forget what was before."""
        self.seconds.clear()
        self.started = time.perf_counter()


def watch_all(clock: Clock) -> None:
    """Time the parts of an iteration."""
    for name in ("submit", "poll", "load_weights"):
        clock.watch(TransformersSampler, name, "sampler")
    for name in ("_reset", "_step", "restore"):
        clock.watch(SearchQA, name, "environment")
    for name in ("reset", "step"):
        clock.watch(Environment, name, "environment")
    clock.watch(Actor, "logprobs", "model")
    clock.watch(Critic, "values", "model")
    clock.watch(torch.Tensor, "backward", "model")
    for owner in (policy_module, actor_critic):
        clock.watch(owner, "step_now", "model")
    clock.watch(TreeBlocks, "of", "attention layout")
    for name in ("prompt", "decode", "observation"):
        clock.watch(Tokens, name, "tokenizing")
    clock.watch(TreeGrower, "grow", "growing trees")
    clock.watch(LeafwiseEstimator, "__call__", "advantages")
    clock.watch(module, "plan_packs", "packing")
    clock.watch(ModelCheckpoint, "_save_checkpoint", "checkpoints")


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/tree_grpo.yaml")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    clock = Clock()
    watch_all(clock)
    plain, calls = TreeSampler.collect, 0

    def collect(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            clock.begin()
        return plain(*args, **kwargs)

    TreeSampler.collect = collect  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        epochs = ("--trainer.max_epochs", str(given.iterations + 1), "--trainer.limit_val_batches", "0")
        cli.main(["fit", "--config", given.config, *epochs, "--trainer.default_root_dir", folder])
    total = time.perf_counter() - clock.started
    shares = {part: round(seconds / total, 3) for part, seconds in sorted(clock.seconds.items(), key=lambda x: -x[1])}
    outside = 1 - sum(clock.seconds[part] for part in INSIDE) / total
    shares["loop, logging, all else"] = round(1 - sum(clock.seconds.values()) / total, 3)
    row = {"seconds an iteration": round(total / given.iterations, 2), "outside": round(outside, 3), "shares": shares}
    print(json.dumps(row))
    if given.out:
        given.out.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
