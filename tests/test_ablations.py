"""Pieces of TreePPO are switched off one by one, each by one key on top of its config."""

import pytest

from lit_treerl.algorithms.tree_ppo import TreePPO
from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.callbacks.warmup import CriticWarmup
from lit_treerl.trees.budget import UniformBudget
from lit_treerl.trees.critic_guided import CriticGuidedBudget
from runs import CONFIGS, built

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def pieces(monkeypatch, tmp_path):
    """Parse a command line on top of a config and give what it built: module, sampler callback, warm-up."""

    def build(*args: str, config: str = "tree_ppo"):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("torch.set_num_threads", lambda _: None)
        monkeypatch.setenv("PL_GLOBAL_SEED", "0")
        monkeypatch.setenv("PL_SEED_WORKERS", "0")
        cli = built(monkeypatch, "fit", "--config", str(CONFIGS / f"{config}.yaml"), *args)
        found = [next(c for c in cli.trainer.callbacks if isinstance(c, kind)) for kind in (TreeSampler, CriticWarmup)]
        return cli.model, *found

    return build


def described(model, sampler, warmup) -> dict:
    """What the ablations change."""
    tree = model.value_tree
    return {
        "value tree": tree is not None,
        "half-life": None if tree is None else tree.half_life,
        "mixture": model.algorithm.uses_value_tree,
        "bootstrap": model.algorithm.gae_lambda < 1,
        "n0": model.algorithm.weight_saturation,
        "warm-up": warmup.iterations,
        "budget": type(sampler.budget),
        "draw": sampler.search.draw,
    }


WHOLE = {
    "value tree": True,
    "half-life": 8.0,
    "mixture": True,
    "bootstrap": True,
    "n0": 4.0,
    "warm-up": 0,
    "budget": CriticGuidedBudget,
    "draw": "uniform",
}


def test_the_whole_is_there(pieces):
    model, *others = pieces()
    assert described(model, *others) == WHOLE
    assert type(model.algorithm) is TreePPO
    assert model.critic_wanted


@pytest.mark.parametrize(
    ("args", "changes"),
    [
        ("--model.value_tree null", {"value tree": False, "half-life": None, "mixture": False}),
        ("--model.value_tree.half_life null", {"half-life": None}),
        ("--model.algorithm.mixture false", {"mixture": False}),
        ("--model.algorithm.gae_lambda 1", {"bootstrap": False}),
        ("--model.algorithm.weight_saturation 1e-9", {"n0": 1e-9}),
        ("--warmup.iterations 6", {"warm-up": 6}),
        ("--budget UniformBudget", {"budget": UniformBudget}),
        ("--budget.most 3 --budget UniformBudget", {"budget": UniformBudget}),
        ("--search.draw critic_gap", {"draw": "critic_gap"}),
    ],
)
def test_one_key_changes_one_piece(args, changes, pieces):
    assert described(*pieces(*args.split())) == WHOLE | changes


def test_null_reaches_settings_at_any_depth(pieces):
    model, *_ = pieces("--model.loss.dual_clip", "null", "--model.critic.loss.clip=null", config="tree_grpo")
    assert model.loss.dual_clip is None
    assert model.critic_config.loss.clip is None
    model, *_ = pieces("--model.value_tree", "ValueTree", "--model.value_tree.half_life=null", config="tree_grpo")
    assert model.value_tree.half_life is None
