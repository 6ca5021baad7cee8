"""Milliseconds per reset, step, snapshot and restore of WebShop, played by the scripted shopper and at random.

Run with ``python -m benchmarks.webshop_speed``; ``--catalogue FOLDER`` measures the released products.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from statistics import median
from typing import Any

from lit_treerl.data.webshop_tasks import WebShopTasks
from lit_treerl.envs.webshop import Shopper, WebShop
from lit_treerl.trees.task import Task


class Timer:
    """Durations of named calls, in milliseconds."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def __call__(self, name: str, call: Any, *args: Any) -> Any:
        begun = time.perf_counter()
        result = call(*args)
        self.spent.setdefault(name, []).append(1000 * (time.perf_counter() - begun))
        return result

    def table(self) -> dict[str, dict[str, float]]:
        return {
            name: {"median": median(times), "mean": sum(times) / len(times), "calls": len(times)}
            for name, times in self.spent.items()
        }


def play(env: WebShop, task: Task, rng: random.Random, scripted: bool, timer: Timer) -> None:
    """One episode; after every step the state is taken and gone back to."""
    timer("reset", env.reset, task)
    shopper, done = Shopper(task.question, max_turns=env.max_turns), False
    while not done:
        command = shopper.act(env.scene)[1] if scripted else _at_random(env, task, rng)
        kind = command.partition("[")[0]
        done = timer(kind, env.step, f"<think> so </think> <action> {command} </action>").done
        state = timer("snapshot", env.snapshot)
        timer("restore", env.restore, state)


def _at_random(env: WebShop, task: Task, rng: random.Random) -> str:
    offered = rng.choice(env.scene.commands)
    return f"search[{' '.join(rng.choices(task.question.split(), k=4))}]" if offered.startswith("search") else offered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--catalogue", help="folder of the released files; generated when left out")
    parser.add_argument("--products", type=int)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--out", help="JSON file")
    options = parser.parse_args()
    settings = {"catalogue": options.catalogue, "products": options.products}
    env, results = WebShop(**settings), {}
    begun = time.perf_counter()
    env.setup()
    results["setup_seconds"] = time.perf_counter() - begun
    tasks = WebShopTasks("train", limit=options.episodes, **settings).load()
    for name in ("scripted", "random"):
        rng, timer = random.Random(0), Timer()
        for task in tasks:
            play(env, task, rng, name == "scripted", timer)
        results[name] = timer.table()
    text = json.dumps(results, indent=2)
    print(text)
    if options.out:
        Path(options.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
