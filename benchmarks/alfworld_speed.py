"""ALFWorld: our engine against the stock one at equal traces, and memory over many episodes.

    python -m benchmarks.alfworld_speed [--games 12] [--steps 20] [--episodes 2000] [--out alfworld_speed.json]

Plays the same random commands in generated games of the default size through both; a text, a list of commands or an
outcome that differs ends it with an error. The stock engine is TextWorld's PddlEnv with ALFWorld's names, without
expert. Resets are timed thrice for ours: translating the game, reading its translation from disk, and having it in
memory. `restore` goes back to a random earlier state of another game. On a CPU; needs the extra `alfworld`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from lit_treerl.envs.alfworld.engine import Engine
from lit_treerl.envs.alfworld.env import ALFWorld
from lit_treerl.envs.alfworld_games.make import write_games
from lit_treerl.trees.task import Task


class Clock:
    """Milliseconds of every timed call, by name."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def __call__(self, name: str, call: Any) -> Any:
        start = time.perf_counter()
        result = call()
        self.times.setdefault(name, []).append(1000 * (time.perf_counter() - start))
        return result


def stock_engine() -> Any:
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    return AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)), shuffle=False)


def first(stock: Any, file: str) -> Any:
    stock.load(file)
    return stock.reset()


def seen(engine: Engine, file: str, path: tuple[int, ...]) -> tuple[str, list[str], bool]:
    return engine.text(file, path), sorted(engine.commands(file, path)), engine.standing(file, path)[0]


def same(ours: tuple[str, list[str], bool], state: Any) -> None:
    stock = (state.feedback, state.admissible_commands, state.won)
    if ours != stock:
        raise SystemExit(f"the engines differ:\nours  {ours}\nstock {stock}")


def traces(files: list[str], steps: int, clock: Clock) -> int:
    """Play every game through both engines; returns the number of states compared."""
    rng, states, paths = random.Random(0), 0, []
    seen(Engine(), files[0], ())  # imports, and the grammar that all games share
    engine = Engine()
    for file in files:
        stock = stock_engine()
        state = clock("stock reset", partial(first, stock, file))
        path: tuple[int, ...] = ()
        same(clock("reset, translating", partial(seen, engine, file, ())), state)
        same(clock("reset, from disk", partial(seen, Engine(), file, ())), state)
        for _ in range(steps):
            command = rng.choice(state.admissible_commands)
            state, _, done = clock("stock step", partial(stock.step, command))
            before = path
            path = (*path, engine.commands(file, path)[command])
            same(clock("step", partial(seen, engine, file, path)), state)
            states += 1
            if done:
                path = before
                break
        paths.append((file, path))
    for number in range(100):  # each call finds another game loaded
        file, path = paths[number % len(paths)]
        part = path[: rng.randint(0, len(path))]
        clock("restore", partial(engine.commands, file, part))
        other = paths[(number + len(paths) // 2) % len(paths)][0]
        clock("reset, in memory", partial(seen, engine, other, ()))
    return states


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(files: list[str], episodes: int, turns: int) -> list[tuple[int, float]]:
    """Resident memory over episodes of random commands, each in another game."""
    env, rng, points = ALFWorld(max_turns=turns), random.Random(1), []
    for episode in range(episodes + 1):
        if episode % max(1, episodes // 10) == 0:
            points.append((episode, round(resident_mb(), 1)))
        file = files[episode % len(files)]
        env.reset(Task(file, "alfworld", "", extra={"game": file}))
        done = False
        while not done:
            command = rng.choice(env.snapshot()[0].scene.commands)
            done = env.step(f"<think>x</think><action>{command}</action>").done
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=30, help="of an episode, for memory")
    parser.add_argument("--memory_games", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIT_TREERL_CACHE"] = folder
        files = [str(file) for file in write_games(folder, max(args.games, args.memory_games))]
        states = traces(files[: args.games], args.steps, clock)
        medians = {name: round(median(times), 3) for name, times in clock.times.items()}
        ratios = {
            name: round(medians["stock step" if name == "step" else "stock reset"] / ms, 1)
            for name, ms in medians.items()
            if not name.startswith("stock")
        }
        print(f"{states} states equal in both engines; medians in ms, and how many times faster than stock")
        for name, ms in medians.items():
            print(f"{name:>20} {ms:9.2f}" + (f"  {ratios[name]:7.1f} x" if name in ratios else ""))
        points = memory(files[: args.memory_games], args.episodes, args.turns) if args.episodes else []
        print("resident memory in MB by episode: " + ", ".join(f"{episode}: {mb}" for episode, mb in points))
    if args.out:
        row = {"states": states, "ms": medians, "ratios": ratios, "memory_mb": points}
        args.out.write_text(json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
    main()
