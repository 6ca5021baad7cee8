"""Games written to disk, laid out as the released ones are; also the command ``lit-treerl make-games``."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lit_treerl.envs.alfworld.downward import installed
from lit_treerl.envs.alfworld_games.pddl import goal_texts, problem_text
from lit_treerl.envs.alfworld_games.problems import draw_problem
from lit_treerl.envs.alfworld_games.settings import SPLITS, TASK_TYPES, VERSION, GameSettings, check_types
from lit_treerl.trees.seeding import derive_seed

LAYOUT = "json_2.1.1"  # the folder of the released games
GAME, TRAJECTORY, PROBLEM = "game.tw-pddl", "traj_data.json", "initial_state.pddl"


@dataclass(frozen=True)
class GameFiles:
    """A game: its folder within a split, and what its files hold."""

    folder: str
    contents: dict[str, str]


def make_game(number: int, split: str, seed: int, settings: GameSettings, task_types: Sequence[str]) -> GameFiles:
    """Make one game; it depends on nothing but the arguments. Types take turns.

    ``valid_unseen`` games are in rooms held out of training, the others in training rooms.

    Raises:
        ValueError: where the settings allow no such game.
    """
    rng = random.Random(derive_seed("alfworld game", VERSION, seed, split, number))
    task_type = task_types[number % len(task_types)]
    problem = draw_problem(task_type, split == "valid_unseen", settings, rng)
    name = f"trial_S{seed}_{number:06d}"
    pddl, goal = problem_text(problem, name), rng.choice(goal_texts(problem))
    aim = problem.parent or problem.toggle
    trajectory = {
        "task_id": name,
        "task_type": task_type,
        "pddl_params": {
            "object_target": problem.target,
            "parent_target": problem.parent,
            "mrecep_target": "",
            "toggle_target": problem.toggle,
            "object_sliced": False,
        },
        "scene": {"floor_plan": f"FloorPlan{problem.room.scene}", "scene_num": problem.room.scene},
        "turk_annotations": {"anns": [{"task_desc": goal, "high_descs": []}]},
    }
    domain, grammar = _rules()
    game = {"pddl_domain": domain, "grammar": grammar.replace("UNKNOWN GOAL", goal), "pddl_problem": pddl}
    game |= {"solvable": True, "walkthrough": None}  # by how it is made: everything needed is there and within reach
    contents = {GAME: json.dumps(game), TRAJECTORY: json.dumps(trajectory, indent=1), PROBLEM: pddl}
    return GameFiles(f"{task_type}-{problem.target}-None-{aim}-{problem.room.scene}/{name}", contents)


def write_games(
    out: str | Path,
    n: int,
    seed: int = 0,
    split: str = "train",
    settings: GameSettings | None = None,
    task_types: Sequence[str] = TASK_TYPES,
) -> list[Path]:
    """Write ``n`` games below ``out/json_2.1.1/split``; equal arguments give equal bytes.

    Returns:
        the game files, in order.
    """
    files = []
    for number in range(n):
        made = make_game(number, split, seed, settings or GameSettings(), task_types)
        folder = Path(out) / LAYOUT / split / made.folder
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in made.contents.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        files.append(folder / GAME)
    return files


def _rules() -> tuple[str, str]:
    """Domain and grammar of the installed alfworld."""
    paths = installed("alfworld.info")
    domain, grammar = paths.ALFRED_PDDL_PATH, paths.ALFRED_TWL2_PATH
    return Path(domain).read_text(encoding="utf-8"), Path(grammar).read_text(encoding="utf-8")


def main(args: Sequence[str] | None = None) -> None:
    """Run ``lit-treerl make-games``."""
    parser = argparse.ArgumentParser(
        prog="lit-treerl make-games",
        description="Make games for ALFWorld, offline; the same seed gives the same games.",
    )
    parser.add_argument("--out", required=True, type=Path, help="folder to write to; read it with data ... games: OUT")
    parser.add_argument("--n", type=int, default=500, help="games of each split (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=list(SPLITS), help="(all three)")
    parser.add_argument("--task_types", nargs="+", choices=TASK_TYPES, default=None, metavar="TYPE", help="(all six)")
    parser.add_argument("--receptacles", type=int, default=None, help="most receptacles of a room (all it has)")
    parser.add_argument("--alike", type=int, default=8, help="most receptacles of a kind (%(default)s)")
    parser.add_argument("--distractors", type=int, nargs=2, default=(8, 20), metavar=("FEWEST", "MOST"), help="(8 20)")
    parser.add_argument("--rooms", type=int, default=None, help="floor plans of each kind of room (all)")
    given = parser.parse_args(args)
    if given.n < 1:
        parser.error(f"--n must be at least 1, got {given.n}")
    try:
        settings = GameSettings(given.receptacles, given.alike, tuple(given.distractors), given.rooms)
        for split in given.splits:
            write_games(given.out, given.n, given.seed, split, settings, check_types(given.task_types))
            print(f"{given.out / LAYOUT / split}: {given.n} games")
    except (ValueError, ImportError) as error:
        parser.error(str(error))
