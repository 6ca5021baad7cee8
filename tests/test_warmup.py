"""Critic warm-up: the actor rests, held-out tasks only measure, and once over it never comes back."""

from __future__ import annotations

import io
import math
import warnings
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from test_critic_training import critic_weights, moved

from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.algorithms.tree_ppo import TreePPO
from lit_treerl.callbacks.warmup import CriticWarmup
from lit_treerl.critic_training import CriticConfig
from lit_treerl.modeling.value_packs import ValuePack
from lit_treerl.module import LitTreeRL
from lit_treerl.sft import LitSFT
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup
from lit_treerl.trees.value_tree import ValueTree
from lit_treerl.warmup_trees import WarmupTrees
from tiny_models import save_tiny_policy
from training import fit, make_groups, make_module, weights


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


def tasks_of(groups: list[RolloutGroup]) -> list[str]:
    return [group.task.question for group in groups]


def group_of(question: str, id: str | None = None, **fields: Any) -> RolloutGroup:
    return RolloutGroup(Task(id or question, "test", question, **fields), [])


# ---- the trees of a warm-up ----


def test_every_task_is_on_one_side_for_good_by_its_content():
    trees = WarmupTrees(held_out=0.3, passes=1, replay=99)
    questions = [f"question {i}" for i in range(300)]
    trees.add([group_of(q) for q in questions])
    held, trained = set(tasks_of(trees.held)), set(tasks_of(trees.trained))
    assert held | trained == set(questions)
    assert not held & trained
    assert 60 < len(held) < 120
    trees.add([group_of(q, id=f"another id {q}") for q in reversed(questions)])
    assert set(tasks_of(trees.held)) == held
    assert len(trees.held) == 2 * len(held)
    other = WarmupTrees(0.3, 5, 1)
    other.add([group_of(q) for q in questions])
    assert set(tasks_of(other.held)) == held
    more = WarmupTrees(0.6, 1, 1)
    more.add([group_of(q) for q in questions])
    assert held < set(tasks_of(more.held))  # a larger share only adds


def test_the_oldest_iterations_leave():
    trees = WarmupTrees(0.5, 1, replay=2)
    assert (trees.iterations, trees.held, trees.trained) == (0, [], [])
    for names in ("ab", "cd", "ef"):
        trees.add([group_of(name) for name in names])
    assert trees.iterations == 2
    assert sorted(tasks_of(trees.held + trees.trained)) == ["c", "d", "e", "f"]


def test_its_state_goes_through_a_checkpoint_unchanged():
    groups = make_groups(count=2)
    prompt = ({"role": "user", "content": "?"},)
    odd = RolloutGroup(Task("odd", "s", "q", ("x", "y"), prompt, {"game": [1, {"a": 2}]}), groups[0].trees)
    trees, again = WarmupTrees(0.5, 1, 8), WarmupTrees(0.5, 1, 8)
    trees.add(groups)
    trees.add([odd])
    file = io.BytesIO()
    torch.save(trees.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again.iterations == 2
    assert again.held == trees.held
    assert again.trained == trees.trained
    assert {type(g.task.answers) for g in again.held + again.trained} == {tuple}


# ---- the callback, with a module that measures what it is told ----


class Measured(LitTreeRL):
    """Explains what it is told to, and keeps what is logged."""

    def __init__(self, *found: float) -> None:
        super().__init__()
        self.found, self.logged = list(found), []

    def measure_warmup(self) -> float:
        return self.found.pop(0)

    def log_dict(self, values: Any, *args: Any, **kwargs: Any) -> None:
        self.logged.append(values)


NO_TRAINER: Any = SimpleNamespace(max_epochs=-1)


def run(callback: CriticWarmup, module: LitTreeRL, iterations: int) -> list[bool]:
    """Whether the actor rests in each iteration."""
    callback.on_fit_start(NO_TRAINER, module)
    rests = []
    for _ in range(iterations):
        rests.append(module.warmup is not None)
        callback.on_train_epoch_end(NO_TRAINER, module)
    return rests


def test_it_warns_where_no_iteration_is_left_for_the_actor(policy):
    module = make_module(policy)
    with pytest.warns(UserWarning, match="warmup.iterations 3 may use up trainer.max_epochs 3"):
        CriticWarmup(iterations=3).setup(cast(Any, SimpleNamespace(max_epochs=3)), module, "fit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CriticWarmup(iterations=3).setup(cast(Any, SimpleNamespace(max_epochs=4)), module, "fit")
        CriticWarmup(iterations=3).setup(cast(Any, SimpleNamespace(max_epochs=-1)), module, "fit")


def test_it_ends_at_the_threshold():
    module = Measured(-0.5, 0.29, 0.3)
    callback = CriticWarmup(iterations=9, threshold=0.3)
    assert run(callback, module, 5) == [True, True, True, False, False]
    assert callback.over
    assert module.logged == [
        {"warmup/explained_variance": value, "warmup/iterations": done}
        for done, value in ((1.0, -0.5), (2.0, 0.29), (3.0, 0.3))
    ]


def test_it_ends_at_the_cap_whatever_was_measured():
    module = Measured(math.nan, 0.1, math.nan)
    callback = CriticWarmup(iterations=3, threshold=0.3)
    assert run(callback, module, 5) == [True, True, True, False, False]


def test_what_is_unknown_passes_no_threshold():
    assert run(CriticWarmup(iterations=2, threshold=-9.0), Measured(math.nan, math.nan), 3) == [True, True, False]


def test_none_at_all():
    module, callback = Measured(), CriticWarmup()
    callback.setup(NO_TRAINER, module, "fit")
    assert not module.critic_wanted
    assert run(callback, module, 2) == [False, False]
    assert module.logged == []


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_it_wants_a_critic_in_every_stage(stage):
    module = LitTreeRL(algorithm=GRPO())
    CriticWarmup(iterations=1).setup(NO_TRAINER, module, stage)
    assert module.critic_wanted


def test_modules_without_a_critic_are_left_alone():
    module, callback = LitSFT(), CriticWarmup(iterations=2)
    callback.setup(NO_TRAINER, module, "fit")
    callback.on_fit_start(NO_TRAINER, module)
    callback.on_train_epoch_end(NO_TRAINER, module)
    assert callback.done == 0
    assert not hasattr(module, "warmup")


def resumed(callback: CriticWarmup, **settings: Any) -> CriticWarmup:
    other = CriticWarmup(**({"iterations": 3} | settings))
    other.load_state_dict(callback.state_dict())
    return other


def test_it_goes_on_where_it_was_interrupted():
    callback = CriticWarmup(iterations=3)
    module = Measured(0.0, 0.0)
    run(callback, module, 1)
    module.warmup.add(make_groups())
    other, fresh = resumed(callback), Measured(0.0, 0.0)
    assert run(other, fresh, 3) == [True, True, False]
    again = Measured(0.0)
    other = resumed(callback)
    other.on_fit_start(NO_TRAINER, again)
    assert again.warmup.iterations == 1
    assert again.warmup.held + again.warmup.trained


@pytest.mark.parametrize("found", [[0.9], [0.0, 0.0, 0.0]], ids=["threshold", "cap"])
def test_once_over_it_never_comes_back(found):
    callback = CriticWarmup(iterations=3)
    module = Measured(*found)
    run(callback, module, 1)
    run(callback, module, len(found) - 1)
    module.found = []
    assert run(callback, module, 3) == [False] * 3
    assert run(resumed(callback), Measured(), 3) == [False] * 3
    assert run(resumed(callback, iterations=99), Measured(), 3) == [False] * 3
    assert callback.state_dict()["trees"] == {"kept": []}  # the memory is given back


def test_a_lowered_cap_ends_it():
    callback = CriticWarmup(iterations=9)
    run(callback, Measured(0.0, 0.0), 2)
    for cap in (0, 1, 2):
        assert run(resumed(callback, iterations=cap), Measured(), 2) == [False, False]
    assert run(resumed(callback, iterations=3), Measured(0.0), 2) == [True, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": -1}, r"warmup\.iterations must be at least 0, got -1"),
        ({"passes": 0}, r"warmup\.passes must be at least 1, got 0"),
        ({"replay": 0}, r"warmup\.replay must be at least 1, got 0"),
        ({"held_out": 0.0}, r"warmup\.held_out must be between 0 and 1, got 0\.0"),
        ({"held_out": 1.0}, r"warmup\.held_out must be between 0 and 1"),
        ({"threshold": 1.5}, r"warmup\.threshold must be at most 1, got 1\.5"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CriticWarmup(**settings)


# ---- a real module ----


def warming(policy, *, held_out: float = 0.5, passes: int = 1, replay: int = 8, **settings) -> LitTreeRL:
    defaults = {"algorithm": TreePPO(), "value_tree": ValueTree(), "critic": CriticConfig(lr=1e-2, mini_batches=1)}
    module = make_module(policy, **(defaults | settings))
    module.warmup = WarmupTrees(held_out, passes, replay)
    return module


def tasks(groups: list[RolloutGroup], offset: int = 0) -> list[RolloutGroup]:
    """The groups under contents of their own; :func:`make_groups` prompts with [5, 6, number]."""
    return [RolloutGroup(Task(str(i), "test", f"{i + offset}"), g.trees) for i, g in enumerate(groups)]


def prompts(packs: list[Any]) -> set[int]:
    """The third token of every context: the number of the group."""
    return {int(pack.pack.ids[i + 2]) for pack in packs for i in (pack.pack.parent < 0).nonzero()[:, 0].tolist()}


def test_the_actor_rests_while_the_critic_learns_from_the_tasks_that_are_not_held_out(policy):
    module = warming(policy)
    groups = tasks(make_groups(count=8))
    actor = weights(module)
    for iteration in range(2):
        critic = critic_weights(module)
        packs = module.make_packs(groups, iteration)
        assert packs
        assert all(isinstance(pack, ValuePack) for pack in packs)
        held = {int(g.task.id) for g in module.warmup.held}
        assert held
        assert prompts(packs) == set(range(8)) - held
        fit(module, packs)
        assert moved(critic, critic_weights(module))
    assert not moved(actor, weights(module))
    assert int(module.updates) == 0
    values = module.iteration_values()
    assert values["train/loss_actor"] == values["train/grad_norm_actor"] == values["rollout/zero_signal_groups"] == 0
    assert values["train/loss_critic"] > 0


def test_each_iteration_learns_from_all_trees_of_the_warmup_again(policy):
    module = warming(policy, passes=3, replay=2, critic=CriticConfig(mini_batches=2))
    counts = []
    for iteration in range(3):
        groups = tasks(make_groups(seed=iteration, count=6), offset=6 * iteration)
        packs = module.make_packs(groups, iteration)
        counts.append(sum(pack.step_end for pack in packs))
        known = module.warmup.trained
        read = sum(len(places) for pack in packs for places in pack.places)
        inner = sum(len(set(tree.parent) - {-1}) for g in known for tree in g.trees)
        assert read == 3 * inner  # every state of every tree, in every pass
    assert counts == [3 * 2, 3 * 2 * 2, 3 * 2 * 2]  # steps per pass grow with the trees, up to the replay
    assert module.value_tree.tasks() == 18  # held-out tasks are known to the value tree, and each tree added once


def test_targets_are_the_value_trees(policy):
    module = warming(policy)
    groups = tasks(make_groups(count=8))
    packs = module.make_packs(groups, 0)
    numbers = [i for i, g in enumerate(groups) if g in module.warmup.trained]
    means = {i: [mean for mean, _ in module.value_tree.beliefs(groups[i])] for i in numbers}
    for pack in packs:
        for places, target in zip(pack.places, pack.target.tolist(), strict=True):
            if len(places) == 1:
                place = places[0]
                number = int(pack.pack.ids[_start(pack, pack.places.index(places)) + 2])
                assert target == pytest.approx(means[number][place.tree][place.node], abs=1e-6)


def _start(pack: ValuePack, read: int) -> int:
    token = int(pack.token[read])
    while pack.pack.parent[token] >= 0:
        token = int(pack.pack.parent[token])
    return token


def test_it_works_without_a_value_tree(policy):
    module = warming(policy, value_tree=None)
    critic = critic_weights(module)
    fit(module, module.make_packs(tasks(make_groups(count=8)), 0))
    assert moved(critic, critic_weights(module))
    assert not math.isnan(module.measure_warmup())


def test_only_held_out_tasks_measure(policy):
    module = warming(policy, value_tree=None)
    groups = tasks(make_groups(count=8))
    module.make_packs(groups, 0)
    held = module.warmup.held
    with torch.no_grad():
        module.critic.value_head.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    from lit_treerl.algorithms.base import Beliefs
    from lit_treerl.critic_training import measure, state_targets

    def explained(some: list[RolloutGroup]) -> float:
        plain = state_targets(some, [[Beliefs()] * len(g.trees) for g in some], 4.0)
        return measure(module.critic_values(some), plain)

    module.smoothed_variance = 0.9  # of another critic, long ago
    assert module.measure_warmup() == pytest.approx(explained(held))
    assert explained(held) != pytest.approx(explained(groups))
    assert module.explained_variance == pytest.approx(explained(held))
    assert module.smoothed_variance == pytest.approx(max(-1.0, explained(held)))


def test_nothing_is_measured_where_no_task_is_held_out_yet(policy):
    module = warming(policy, held_out=1e-4)
    fit(module, module.make_packs(tasks(make_groups()), 0))
    assert module.warmup.held == []
    assert math.isnan(module.measure_warmup())


def test_nothing_is_learned_where_every_task_is_held_out(policy):
    module = warming(policy, held_out=0.9999)
    critic = critic_weights(module)
    packs = module.make_packs(tasks(make_groups()), 0)
    assert [len(pack) for pack in packs] == [0]
    fit(module, packs)
    assert not moved(critic, critic_weights(module))


def test_after_it_the_actor_learns(policy):
    module = warming(policy)
    groups = tasks(make_groups())
    fit(module, module.make_packs(groups, 0))
    module.warmup = None
    actor = weights(module)
    packs = module.make_packs(groups, 1)
    assert {type(pack).__name__ for pack in packs} == {"Pack", "ValuePack"}
    fit(module, packs)
    assert moved(actor, weights(module))
