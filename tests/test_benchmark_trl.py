"""The benchmark against TRL: its arithmetic and its rollouts without TRL, the losses and a small run with it."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

from benchmarks.trl import theirs
from benchmarks.trl.__main__ import main
from benchmarks.trl.check_loss import check, frozen
from benchmarks.trl.job import Sampling, World
from benchmarks.trl.ours import settings
from benchmarks.trl.report import line, rate, report, spent, summary
from benchmarks.trl.rollouts import Rollouts, reward
from benchmarks.trl.runs import Job
from lit_treerl.data.datamodule import TreeRolloutDataModule

POINTS = [
    {"seconds": 0.0, "cpu": 0.0, "rollout": 0.0, "tokens": 0, "em": 0.125},
    {"seconds": 10.0, "cpu": 6.0, "rollout": 4.0, "tokens": 2000, "em": 0.25},
    {"seconds": 30.0, "cpu": 10.0, "rollout": 9.0, "tokens": 4000, "em": 0.5},
]


@pytest.fixture(scope="module")
def world():
    return World(validation=4)


def test_what_was_spent_until_a_target_is_read_between_examinations():
    assert spent(POINTS, "seconds", 0.375) == 20
    assert spent(POINTS, "cpu", 0.3125) == 7
    assert spent(POINTS, "tokens", 0.5) == 4000
    assert spent(POINTS, "tokens", 0.125) == 0
    assert spent(POINTS, "tokens", 0.75) == math.inf
    assert rate(POINTS, "seconds") == 7.5


def test_a_summary_says_what_was_not_reached():
    assert summary([3.0, 1.0, math.inf]) == {"median": 3.0, "least": 1.0, "most": None, "runs": 3}
    assert summary([math.nan, 2.0]) == {"median": 2.0, "least": 2.0, "most": 2.0, "runs": 1}
    assert summary([math.nan])["median"] is None


def test_the_report_has_ratios_to_trl_of_equal_seeds():
    slow = [point | {"seconds": 4 * point["seconds"]} for point in POINTS]
    never = POINTS[:2]
    runs = [("trl", 0, slow), ("grpo", 0, POINTS), ("trl", 1, slow), ("grpo", 1, never), ("grpo", 2, POINTS)]
    rows = report([{"side": side, "seed": seed, "points": points} for side, seed, points in runs], [0.375])
    found = {(row["what"], row["side"]): row for row in rows}
    assert found["seconds to em 0.375", "trl"] == {
        "what": "seconds to em 0.375",
        "side": "trl",
        "median": 80.0,
        "least": 80.0,
        "most": 80.0,
        "runs": 2,
    }
    assert found["seconds to em 0.375", "grpo"]["over trl"] == {"median": None, "least": 0.25, "most": None, "runs": 2}
    assert found["seconds per 1,000 tokens", "grpo"]["over trl"]["median"] == pytest.approx((0.25 + 1 / 6) / 2)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    words = " ".join(line(found["seconds to em 0.375", "grpo"]).split())
    assert words == "seconds to em 0.375 grpo 20 (20 to -) of 3 over trl - (0.25 to -)"


def test_both_sides_ask_the_same_questions(world, monkeypatch):
    monkeypatch.setattr(TreeRolloutDataModule, "seed", 3)
    order = TreeRolloutDataModule().order(0, len(world.train))
    assert world.order(3) == [world.train[i] for i in order]
    assert len({task.question for task in world.train}) == len(world.train)  # TRL's side finds tasks by them


def test_rollouts_for_trl_are_the_chains_of_the_same_actions(world):
    tasks = world.train[:3]
    groups = Sampling(world).chains(tasks, 2, temperature=1.0)
    wanted = frozen(groups)
    actions = [
        [tree.ids[node][: tree.action_len[node]] for node in tree.path(leaf)[1:]]
        for group in groups
        for tree, leaf in group.leaves()
    ]

    left = []

    class Replayed(Rollouts):
        def begin(self, task):
            episode = super().begin(task)
            left.append((episode, actions.pop(0)))
            return episode

        def act(self, trainer, episodes):
            return [actions.pop(0) for episode, actions in left if any(episode is other for other in episodes)]

    rollouts = Replayed(world, tasks)
    prompts = [world.env.spawn().reset(task) for task in tasks for _ in range(2)]
    found = rollouts(prompts, SimpleNamespace())
    assert found == wanted
    assert rollouts.sampled == sum(map(sum, found["env_mask"]))
    assert reward(found["earned"], prompts=prompts) == [
        tree.leaf_return(leaf) for g in groups for tree, leaf in g.leaves()
    ]
    assert rollouts.cut([40, rollouts.ends[1], 41, rollouts.ends[0]]) == [40, rollouts.ends[1]]
    assert rollouts.cut([40, 41]) == [40, 41]


def test_our_side_changes_only_what_the_job_names(tmp_path):
    changes = settings(Job("grpo", 7, scaling="none", lr=1e-3, tasks=4), tmp_path)
    assert changes["seed_everything"] == 7
    assert changes["model"]["init_args"]["actor_lr"] == 1e-3
    assert changes["model"]["init_args"]["algorithm"] == {"init_args": {"normalisation": "none"}}
    assert changes["data"]["init_args"]["tasks_per_iteration"] == 4


def test_without_trl_it_says_so(monkeypatch):
    monkeypatch.setattr(theirs, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install trl"):
        main(["--check-loss"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scaling", ["none", "group"])
def test_both_losses_of_one_frozen_batch_agree(scaling):
    pytest.importorskip("trl")
    found = check(scaling, tasks=8)
    assert found["difference"] < 1e-5
    assert found["gradient difference"] < 1e-5 < 1e-3 < found["largest gradient"]
    assert found["clipped ours"] == pytest.approx(found["clipped trl"], rel=1e-5)
    assert found["clipped ours"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_iteration_of_each_side(tmp_path, capsys):
    pytest.importorskip("trl")
    out = tmp_path / "out.json"
    arguments = ["--seeds", "1", "--max-tokens", "1", "--tasks", "4", "--validation", "10", "--out", str(out)]
    main(arguments)
    runs = {run["side"]: run["points"] for run in json.loads(out.read_text())["runs"]}
    assert set(runs) == {"trl", "grpo", "tree_grpo"}
    assert len({points[0]["em"] for points in runs.values()}) == 1  # the same weights, the same examination
    for first, last in runs.values():
        assert first["seconds"] == first["tokens"] == 0
        assert 0 < last["rollout"] < last["seconds"]
        assert 300 < last["tokens"] < 2000
    written = out.read_text()
    main(arguments)  # everything is there already
    assert out.read_text() == written
    assert "over trl" in capsys.readouterr().out
