"""Runs with a critic, a value tree, a warm-up and a guided budget go on from any iteration as if never stopped."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from lit_treerl.callbacks.checkpoints import NewestCheckpoint
from lit_treerl.module import LitTreeRL
from runs import Run, newest, run, same

pytestmark = pytest.mark.filterwarnings("ignore")
WARMUP = 2
SETTINGS = [
    *("--warmup.iterations", str(WARMUP), "--warmup.threshold", "1.0", "--warmup.passes", "6"),
    *("--data.train.hops", "[1,6]", "--data.train.n", "8", "--data.tasks_per_iteration", "8"),
    *("--search.trees", "2", "--search.expansions", "0"),
    *("--model.critic.lr", "1e-3"),
    *("--trainer.limit_val_batches", "0", "--trainer.max_epochs", "4"),
]
FORKED = [  # forks drawn by the critic, budget counted in tokens, clipped cross-entropy, no warm-up
    *("--search.trees", "2", "--search.expansions", "1", "--search.draw", "critic", "--budget", "CriticGuidedBudget"),
    *("--budget.unit", "tokens", "--model.value_tree", "ValueTree", "--model.critic.loss.kind", "bce"),
    *("--model.critic.loss.clip", "0.5", "--model.critic.lr", "1e-3", "--trainer.limit_val_batches", "0"),
    *("--model.algorithm", "TreeGRPO", "--model.algorithm.baseline", "running_mean"),
    *("--model.algorithm.normalisation", "none", "--trainer.max_epochs", "2", "--data.train.n", "4"),
]
HELD = ("state_dict", "optimizer_states", "lr_schedulers", "critic", "value_tree", "algorithm")


def fit(root: Path, *args: str, config: str = "tree_ppo") -> Run:
    settings = SETTINGS if config == "tree_ppo" else FORKED
    return run(pytest.MonkeyPatch.context, "fit", root, *settings, *args, config=config)


def keeping(root: Path, config: str) -> Run:
    """An unbroken run whose newest checkpoint of every iteration is kept beside it, as ``1.ckpt``, ``2.ckpt``, ..."""
    plain = NewestCheckpoint.on_train_epoch_end

    def copied(self, trainer, pl_module):
        plain(self, trainer, pl_module)
        shutil.copy(Path(self.dirpath) / "last.ckpt", root / f"{trainer.current_epoch + 1}.ckpt")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NewestCheckpoint, "on_train_epoch_end", copied)
        return fit(root, config=config)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Run:
    return keeping(tmp_path_factory.mktemp("unbroken"), "tree_ppo")


@pytest.fixture(scope="module")
def forked(tmp_path_factory) -> Run:
    return keeping(tmp_path_factory.mktemp("forked"), "tree_grpo")


def kept(run: Run, iteration: int) -> Path:
    return run.folder.parent / f"{iteration}.ckpt"


def load(path: Path) -> dict:
    return torch.load(path, weights_only=True)


def assert_same_end(one: Run, other: Run) -> None:
    found, expected = one.checkpoint(), other.checkpoint()
    assert (found["epoch"], found["global_step"]) == (expected["epoch"], expected["global_step"])
    for part in HELD:
        assert same(found[part], expected[part]), part
    for callback in ("TreeSampler", "CriticWarmup", "TokenBudget"):
        assert same(found["callbacks"][callback], expected["callbacks"][callback]), callback


def iterations(run: Run) -> list[dict[str, str]]:
    return [row for row in run.repeatable_rows() if "train/reward" in row]


@pytest.mark.parametrize("done", [1, 2, 3], ids=["within-the-warm-up", "right-after-it", "later"])
def test_a_run_goes_on_from_any_iteration_as_if_it_had_never_stopped(unbroken, tmp_path, done):
    resumed = fit(tmp_path, "--ckpt_path", str(kept(unbroken, done)))
    assert resumed.trees == unbroken.trees[done:]
    assert iterations(resumed) == iterations(unbroken)[done:]
    assert_same_end(resumed, unbroken)


def test_the_unbroken_run_has_seen_what_could_go_wrong(unbroken):
    """Warm-up and afterwards, guided and uniform allocations, a value tree, two optimizers."""
    rows, last = iterations(unbroken), unbroken.checkpoint()
    assert [("warmup/iterations" in row) for row in rows] == [True, True, False, False]
    assert any(row["budget/min"] != row["budget/max"] for row in rows)
    assert len(last["optimizer_states"]) == 2
    assert all(len(state["state"]) > 10 for state in last["optimizer_states"])
    assert len(last["value_tree"]["nodes"]["keys"]) > 50
    assert last["callbacks"]["CriticWarmup"]["over"] is True


def test_the_actor_rests_during_the_warm_up_and_the_critic_moves(unbroken):
    start = LitTreeRL()
    start.configure_model()
    before = start.state_dict()
    states = [load(kept(unbroken, done))["state_dict"] for done in (1, 2, 3, 4)]
    actor = [name for name in before if name.startswith("actor.")]
    for state in states[:WARMUP]:
        assert all(torch.equal(state[name], before[name]) for name in actor)
        assert int(state["updates"]) == 0
    assert sum(not torch.equal(states[WARMUP][name], before[name]) for name in actor) > len(actor) / 2
    assert int(states[-1]["updates"]) == 4
    critic = [name for name in states[0] if name.startswith("critic.")]
    for one, other in pairwise(states):
        assert any(not torch.equal(one[name], other[name]) for name in critic)


def test_the_total_of_trees_is_exact_in_every_iteration(unbroken):
    for trees in unbroken.trees:
        counts = [len(json.loads(group)) for group in trees]
        assert len(counts) == 8
        assert sum(counts) == 8 * 2
        assert min(counts) >= 1
    assert len({len(json.loads(group)) for trees in unbroken.trees for group in trees}) > 1


@pytest.mark.parametrize("phase", ["planning", "training"])
def test_an_iteration_that_broke_leaves_nothing_behind(unbroken, tmp_path, phase):
    """Planning has already grown the value tree and the warm-up's trees when it breaks."""
    calls = [0]
    name = "make_packs" if phase == "planning" else "training_step"
    plain = getattr(LitTreeRL, name)

    def breaking(self, *args):
        out = plain(self, *args)
        calls[0] += self.trainer.fit_loop.epoch_progress.current.processed == 1
        if calls[0]:
            raise RuntimeError("power cut")
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LitTreeRL, name, breaking)
        with pytest.raises(RuntimeError, match="power cut"):
            fit(tmp_path)
    broken = newest(tmp_path) / "checkpoints" / "last.ckpt"
    found, expected = load(broken), load(kept(unbroken, 1))
    for part in HELD:
        assert same(found[part], expected[part]), part
    for callback in ("TreeSampler", "CriticWarmup", "TokenBudget"):
        assert same(found["callbacks"][callback], expected["callbacks"][callback]), callback


def test_forks_by_the_critic_and_a_budget_in_tokens_go_on_as_well(forked, tmp_path):
    rows = iterations(forked)
    assert [name for name in ("train/loss_critic", "apvt/nodes", "budget/min") if name not in rows[1]] == []
    assert {value for name, value in rows[1].items() if "by_difficulty" in name} != {"nan"}  # guided, not uniform
    assert forked.checkpoint()["callbacks"]["TreeSampler"]["costs"]
    assert forked.checkpoint()["algorithm"].keys() == {"running_mean"}
    resumed = fit(tmp_path, "--ckpt_path", str(kept(forked, 1)), config="tree_grpo")
    assert resumed.trees == forked.trees[1:]
    assert iterations(resumed) == rows[1:]
    assert_same_end(resumed, forked)
