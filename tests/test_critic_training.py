"""What the critic is told to say, how well it says it, and its optimizer steps."""

from __future__ import annotations

import math
import random
import warnings
from dataclasses import replace

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from lit_treerl.actor_critic import MOMENTUM
from lit_treerl.algorithms.base import Beliefs, Credit
from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.algorithms.losses import LossConfig
from lit_treerl.algorithms.ppo import PPO
from lit_treerl.algorithms.tree_ppo import TreePPO
from lit_treerl.algorithms.value_loss import ValueLossConfig, value_loss
from lit_treerl.critic_training import (
    CriticConfig,
    credit_targets,
    measure,
    plan_value_packs,
    state_targets,
    tree_values,
    value_tree_beliefs,
    with_others,
)
from lit_treerl.modeling.forest import Place
from lit_treerl.modeling.value_packs import ValuePack, value_packs
from lit_treerl.module import LitTreeRL
from lit_treerl.optimizers import OptimizerConfig
from lit_treerl.policy_module import ActorConfig
from lit_treerl.settings import SettingsError
from lit_treerl.trees.draws import draw_by_critic, draw_by_gap
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Status, Tree
from lit_treerl.trees.value_tree import ValueTree
from lit_treerl.updates import UpdateConfig
from tiny_models import VOCAB_SIZE, save_tiny_policy
from training import fit, make_groups, make_module, weights
from tree_cases import act, group, random_tree

LORA = {"r": 2, "lora_alpha": 8}
END = Status.TERMINAL


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


def keyed_tree(*ends: tuple[str, float], task_id: str = "t") -> Tree:
    """A tree whose root acted once for each (action, reward), each time to the end."""
    tree = Tree(task_id)
    tree.add_root([1, 2])
    for key, reward in ends:
        act(tree, 0, key, reward, END)
    return tree


def two_steps() -> Tree:
    """0 -a-> 1, which ends with 1 by b and with 0 by c; 0 -d-> 4 (end, 0.5); 0 -e-> 5 -> 6 (failed)."""
    tree = Tree("t")
    tree.add_root([1, 2])
    act(tree, 0, "a", 0.25)
    act(tree, 1, "b", 1.0, END)
    act(tree, 1, "c", 0.0, END)
    act(tree, 0, "d", 0.5, END)
    act(tree, 0, "e")
    act(tree, 5, "f", 1.0, Status.FAILED)
    return tree


def close(found: torch.Tensor, *expected: float) -> bool:
    return torch.allclose(found.double(), torch.tensor(expected, dtype=torch.float64), equal_nan=True)


# ---- beliefs ----


def test_values_are_put_back_where_they_were_read_and_are_0_elsewhere():
    groups = [group(two_steps(), keyed_tree(("a", 1.0)))]
    packs = value_packs(groups, max_tokens=100)
    ((first, second),) = tree_values(groups, packs, [torch.arange(len(pack)) + 0.5 for pack in packs])
    assert packs[0].places == [[Place(0, 0, 0), Place(0, 1, 0)], [Place(0, 0, 1)]]
    assert first.value is not None
    assert first.value.tolist() == [0.5, 1.5, 0, 0, 0, 0, 0]
    assert first.value.dtype == torch.float64
    assert second.value is not None
    assert second.value.tolist() == [0.5, 0]


def test_token_values_are_put_back_token_by_token():
    groups = make_groups(count=2)
    packs = value_packs(groups, max_tokens=30, token_level=True)
    number = {place: i + 0.5 for i, place in enumerate(p for pack in packs for some in pack.places for p in some[:1])}
    outputs = [torch.tensor([number[places[0]] for places in pack.places]) for pack in packs]
    found = tree_values(groups, packs, outputs)
    for g, one in enumerate(groups):
        for t, tree in enumerate(one.trees):
            belief = found[g][t]
            assert belief.token_value is not None
            assert [len(some) for some in belief.token_value] == [max(n - 1, 0) for n in tree.action_len]
            for node, some in enumerate(belief.token_value):
                assert some.tolist() == [number[Place(g, t, node, token)] for token in range(len(some))]


def test_priors_are_from_before_and_means_from_after():
    tree = ValueTree(half_life=None, shrinkage=2.0)
    empty = [[Beliefs()]]
    first = group(keyed_tree(("a", 1.0), ("b", 1.0), ("c", 0.0)))
    [[belief]] = value_tree_beliefs([first], tree, 0, empty)
    assert math.isnan(belief.prior or 0.0)  # no task was known
    assert belief.mean is not None
    assert belief.count is not None
    assert belief.trust is not None
    assert close(belief.mean[:1], 2 / 3)  # the only task known is its own prior
    assert close(belief.count[:1], 3.0)
    assert close(belief.trust[:1], 3 / 5)

    again = group(keyed_tree(("a", 0.0), ("b", 0.0)))
    stranger = RolloutGroup(Task("u", "test", "another question"), [keyed_tree(("a", 0.0), ("b", 1.0), task_id="u")])
    [[known], [new]] = value_tree_beliefs([again, stranger], tree, 1, [[Beliefs()], [Beliefs()]])
    assert known.prior == pytest.approx(2 / 3)
    assert new.prior == pytest.approx(2 / 3)  # of all tasks, as they were before
    general = (2 / 5 + 1 / 2) / 2  # afterwards
    assert known.mean is not None
    assert new.mean is not None
    assert known.count is not None
    assert new.count is not None
    assert close(known.mean[:1], (5 * 2 / 5 + 2 * general) / 7)
    assert close(new.mean[:1], (2 * 1 / 2 + 2 * general) / 4)
    assert close(torch.stack([known.count[0], new.count[0]]), 5.0, 2.0)
    assert known.value is None


def test_what_the_critic_believes_is_kept_beside_the_value_tree():
    value = torch.tensor([0.3, 0.0, 0.0])
    [[belief]] = value_tree_beliefs(
        [group(keyed_tree(("a", 1.0), ("b", 0.0)))], ValueTree(), 0, [[Beliefs(value=value)]]
    )
    assert belief.value is value
    assert belief.mean is not None
    assert belief.mean.tolist()[1:] == [0.0, 0.0]  # nothing is to come at an end


# ---- targets ----


def test_targets_without_a_value_tree_are_mean_returns_to_go():
    [[(target, weight)]] = state_targets([group(two_steps())], [[Beliefs()]], 4.0)
    inner = (1.0 + 0.0) / 2
    nan = math.nan
    assert close(target, (0.25 + inner + 0.5) / 2, inner, nan, nan, nan, nan, nan)
    assert weight.tolist() == [1, 1, 0, 0, 0, 0, 0]


def test_targets_of_a_value_tree_are_its_means_weighed_by_their_samples():
    nan = math.nan
    mean = torch.tensor([0.4, 0.7, 0.0, 0.0, 0.0, 0.9, nan], dtype=torch.float64)
    count = torch.tensor([9.0, 1.0, 0.0, 0.0, 0.0, 3.0, 0.0], dtype=torch.float64)
    beliefs = [[Beliefs(mean=mean, count=count, trust=count / (count + 2))]]
    [[(target, weight)]] = state_targets([group(two_steps())], beliefs, 4.0)
    assert close(target, 0.4, 0.7, nan, nan, nan, nan, nan)  # node 5 leads to a failure only: nothing to learn
    assert weight.tolist() == [1.0, 0.5, 0, 0, 0, 0, 0]  # min(1, sqrt(n / 4))
    unknown = [[replace(beliefs[0][0], count=torch.zeros(7, dtype=torch.float64))]]
    [[(target, weight)]] = state_targets([group(two_steps())], unknown, 4.0)
    assert target.isnan().all()
    assert not weight.any()


def test_targets_of_the_algorithm_are_taken_only_where_every_tree_has_them():
    target, weight = torch.tensor([1.0]), torch.tensor([1.0])
    full = Credit([], torch.zeros(1, 0), target=target, target_weight=weight)
    bare = Credit([], torch.zeros(1, 0))
    assert credit_targets([[full], [full]]) == [[(target, weight)], [(target, weight)]]
    assert credit_targets([[full], [bare]]) is None
    assert credit_targets([]) == []


# ---- measuring ----


def believed(*values: float) -> Beliefs:
    return Beliefs(value=torch.tensor(values, dtype=torch.float64))


def aims(*targets: float) -> tuple[torch.Tensor, torch.Tensor]:
    target = torch.tensor(targets, dtype=torch.float64)
    return target, (~target.isnan()).double()


def test_explained_variance_over_all_states_of_all_trees():
    """Trees of a task share the root: targets 0, 1, 1 of weights 1/2, 1/2, 1 vary by 3/16, and what is left by 3/32."""
    values = [[believed(0.25, 0.0), believed(0.75)], [believed(0.5, 9.0)]]
    targets = [[aims(0.0, math.nan), aims(1.0)], [aims(1.0, math.nan)]]
    assert measure(values, targets) == pytest.approx(1 - (3 / 32) / (3 / 16))
    perfect = [[believed(0.0, 5.0), believed(1.0)], [believed(1.0, 9.0)]]
    assert measure(perfect, targets) == pytest.approx(1.0)
    shifted = [[believed(2.0, 5.0), believed(3.0)], [believed(3.0, 9.0)]]
    assert measure(shifted, targets) == pytest.approx(1.0)  # a constant error leaves the variance explained
    constant = [[believed(0.5, 5.0), believed(0.5)], [believed(0.5, 9.0)]]
    assert measure(constant, targets) == pytest.approx(0.0)


def test_nothing_is_explained_where_nothing_varies():
    assert math.isnan(measure([], []))
    assert math.isnan(measure([[believed(0.1, 0.2)]], [[aims(1.0, 1.0)]]))
    assert math.isnan(measure([[believed(0.1)]], [[aims(math.nan)]]))
    assert math.isnan(measure([[Beliefs()]], [[aims(1.0)]]))


# ---- packs ----


def plan(groups, targets, credits=None, seed=0, outputs=lambda pack: torch.zeros(len(pack)), **settings):
    return plan_value_packs(groups, targets, credits, CriticConfig(**settings), random.Random(seed), outputs)


def lone_groups(count: int = 5) -> list[RolloutGroup]:
    """Groups of one random tree each: no two states share a token."""
    rng = random.Random(1)
    return [group(random_tree(rng, prompt=[i + 1, 2, 3], vocab=VOCAB_SIZE), task_id=str(i)) for i in range(count)]


def sampled_targets(groups):
    return state_targets(groups, [[Beliefs()] * len(one.trees) for one in groups], 4.0)


def steps(packs: list[ValuePack]) -> list[list[ValuePack]]:
    out: list[list[ValuePack]] = [[]]
    for pack in packs:
        out[-1].append(pack)
        if pack.step_end:
            out.append([])
    assert out[-1] == []
    return out[:-1]


@pytest.mark.parametrize(("mini_batches", "passes"), [(1, 1), (2, 3), (9, 1)])
def test_every_pass_reads_every_state_once_and_every_step_weighs_1(mini_batches, passes):
    groups = lone_groups()
    targets = sampled_targets(groups)
    states = [float(t) for [(target, _)] in targets for t in target[~target.isnan()]]
    found = steps(plan(groups, targets, mini_batches=mini_batches, passes=passes, max_tokens_per_pack=20))
    each = min(mini_batches, 5)
    assert len(found) == each * passes
    for number in range(passes):
        packs = [pack for step in found[number * each : (number + 1) * each] for pack in step]
        assert sorted(t for pack in packs for t in pack.target.tolist()) == pytest.approx(sorted(states), abs=1e-6)
    for step in found:
        assert sum(float(pack.weight.sum()) for pack in step) == pytest.approx(1.0)
    assert any(len(step) > 1 for step in found) or mini_batches > 1


def test_passes_are_shuffled_apart_and_alike_with_the_same_seed():
    groups = lone_groups()
    targets = sampled_targets(groups)
    packs = plan(groups, targets, mini_batches=5, passes=2)
    first, second = ([pack.pack.ids.tolist() for pack in some] for some in (packs[:5], packs[5:]))
    assert sorted(first) == sorted(second)
    assert first != second
    again = plan(groups, targets, mini_batches=5, passes=2)
    assert [pack.pack.ids.tolist() for pack in again] == first + second
    other = plan(groups, targets, seed=1, mini_batches=5, passes=2)
    assert [pack.pack.ids.tolist() for pack in other] != first + second


def test_targets_follow_their_states_through_the_shuffle():
    groups = lone_groups()
    targets = [[(torch.arange(len(one.trees[0])) + 100.0 * i, torch.ones(len(one.trees[0])))]
               for i, one in enumerate(groups)]  # fmt: skip
    for pack in plan(groups, targets, mini_batches=2, max_tokens_per_pack=20):
        for token, target in zip(pack.token.tolist(), pack.target.tolist(), strict=True):
            row = token
            while pack.pack.parent[row] >= 0:
                row = int(pack.pack.parent[row])
            number = int(pack.pack.ids[row]) - 1  # prompts begin with it
            node = round(target - 100 * number)
            tree = groups[number].trees[0]
            assert 0 <= node < len(tree)
            assert int(pack.pack.position[token]) + 1 == len(tree.context_ids(node))
            assert int(pack.pack.ids[token]) == tree.context_ids(node)[-1]


def test_steps_without_anything_to_learn_are_left_out():
    groups = lone_groups(2)
    nothing = [[(torch.full((len(t),), math.nan), torch.zeros(len(t))) for t in one.trees] for one in groups]
    assert plan(groups, nothing, mini_batches=2) == []
    half = [nothing[0], sampled_targets(groups)[1]]
    assert len(steps(plan(groups, half, mini_batches=2))) == 1
    assert len(steps(plan(groups, half, mini_batches=1))) == 1
    assert plan([], [], mini_batches=2) == []


def test_old_outputs_are_there_just_where_the_loss_is_clipped():
    groups = lone_groups(2)
    targets = sampled_targets(groups)
    asked = []

    def outputs(pack: ValuePack) -> torch.Tensor:
        asked.append(pack)
        return pack.token.float()

    assert all(pack.old is None for pack in plan(groups, targets, outputs=outputs))
    assert not asked
    packs = plan(groups, targets, outputs=outputs, loss=ValueLossConfig(clip=0.2), passes=2)
    assert all(torch.equal(pack.old, pack.token.float()) for pack in packs)
    assert len(asked) == len(packs)


def test_token_level_targets_come_from_the_algorithm_with_weight_1():
    groups = make_groups(count=2)
    beliefs = [
        [
            Beliefs(torch.rand(len(t)).double(), [torch.rand(max(n - 1, 0)).double() for n in t.action_len])
            for t in one.trees
        ]
        for one in groups
    ]
    credits = PPO(level="token")(groups, beliefs)
    targets = credit_targets(credits)
    assert targets is not None
    packs = plan(groups, targets, credits, mini_batches=1)
    for pack in packs:
        for places, target in zip(pack.places, pack.target.tolist(), strict=True):
            known = [
                float(targets[p.group][p.tree][0][p.node])
                if p.token < 0
                else float(credits[p.group][p.tree].token_target[p.node][p.token])
                for p in places
            ]
            assert target == pytest.approx(sum(known) / len(known), abs=1e-6)
    tokens = sum(p.token >= 0 for pack in packs for places in pack.places for p in places)
    assert tokens == sum(max(n - 1, 0) for one in groups for t in one.trees for n in t.action_len) > 0


# ---- the critic's optimizer steps ----


def with_critic(policy, **settings) -> LitTreeRL:
    return make_module(policy, **({"algorithm": PPO(), "critic": CriticConfig(lr=1e-3)} | settings))


def critic_weights(module: LitTreeRL) -> dict[str, torch.Tensor]:
    assert module.critic is not None
    named = dict(module.critic.named_parameters())
    named |= {name: p for name, p in module.actor.named_parameters() if ".critic." in name}
    return {name: p.detach().clone() for name, p in named.items()}


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_no_critic_is_built_unless_something_wants_it(policy):
    module = make_module(policy, algorithm=GRPO())
    assert module.critic is None
    assert "train/loss_critic" not in module.iteration_values()
    packs = module.make_packs(make_groups(), 0)
    assert not [pack for pack in packs if isinstance(pack, ValuePack)]
    assert make_module(policy, algorithm=PPO()).critic is not None
    wanted = LitTreeRL(policy=str(policy), algorithm=GRPO())
    wanted.critic_wanted = True
    wanted.configure_model()
    assert wanted.critic is not None


@pytest.mark.parametrize("max_tokens", [15, 8192])
@pytest.mark.parametrize("kind", ["mse", "bce"])
def test_the_value_loss_over_packs_is_the_plain_loss_over_all_states(policy, kind, max_tokens):
    """Gradients as well, against values of each state computed by itself."""
    config = CriticConfig(mini_batches=1, max_tokens_per_pack=max_tokens, loss=ValueLossConfig(kind))
    module = with_critic(policy, critic=config)
    critic, groups = module.critic, lone_groups(3)
    with torch.no_grad():
        critic.value_head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    beliefs = module.critic_values(groups)
    packs = module.plan_values(groups, module.algorithm(groups, beliefs), beliefs, 0)
    assert (len(packs) > 1) == (max_tokens == 15)
    total = 0.0
    for pack in packs:
        loss, _ = value_loss(critic.values(pack.pack, pack.token), pack.target, pack.weight, None, config.loss)
        loss.backward()
        total += float(loss.detach())
    found = {name: p.grad.clone() for name, p in critic.named_parameters() if p.grad is not None}
    critic.zero_grad()

    credits = module.algorithm(groups, beliefs)
    plain, count = torch.zeros(()), 0
    for one, [credit] in zip(groups, credits, strict=True):
        tree = one.trees[0]
        for node in {tree.parent[n] for leaf in tree.training_leaves() for n in tree.path(leaf)} - {-1}:
            hidden = critic.body.backbone(torch.tensor([tree.context_ids(node)])).last_hidden_state[0, -1]
            value, target = critic.value_head(hidden)[0], credit.target[node].float()
            if kind == "mse":
                plain = plain + 0.5 * (value - target) ** 2
            else:
                target = target.clamp(0, 1)
                p = value.sigmoid()
                plain = plain - target * p.log() - (1 - target) * (1 - p).log()
            count += 1
    (plain / count).backward()
    assert total == pytest.approx(float(plain.detach()) / count, rel=1e-4)
    for name, p in critic.named_parameters():
        if p.grad is not None:
            assert torch.allclose(found[name], p.grad, atol=1e-5), name


def test_a_fresh_critics_first_loss_is_half_the_mean_square_of_its_targets(policy):
    module = with_critic(policy, critic=CriticConfig(lr=1e-3, mini_batches=1))
    groups = lone_groups(3)
    packs = module.make_packs(groups, 0)
    targets = torch.cat([p.target for p in packs if isinstance(p, ValuePack)])
    assert len(targets) == sum(int((~target.isnan()).sum()) for [(target, _)] in sampled_targets(groups))
    actor, critic = weights(module), critic_weights(module)
    fit(module, packs)
    values = module.iteration_values()
    assert values["train/loss_critic"] == pytest.approx(float(0.5 * targets.square().mean()), rel=1e-5)
    assert values["train/value_mean"] == 0.0
    assert values["train/grad_norm_critic"] > 0
    assert values["train/explained_variance"] == pytest.approx(0.0, abs=1e-9)  # it says 0 of every state
    assert moved(critic, critic_weights(module)) == {"value_head.weight", "value_head.bias"}
    assert moved(actor, weights(module))
    assert int(module.updates) == 2  # counts the actor's steps alone: the version of the policy


def test_actor_and_critic_have_schedules_and_clipping_of_their_own(policy):
    from lit_treerl.schedules import ScheduleConfig

    own = OptimizerConfig(schedule=ScheduleConfig(warmup_steps=4), max_grad_norm=1e-3)
    module = with_critic(policy, critic=CriticConfig(lr=0.5, mini_batches=3, optimizer=own))
    trainer = fit(module, module.make_packs(make_groups(), 0))
    actor, critic = trainer.optimizers
    assert actor.param_groups[0]["lr"] == 2e-3
    assert critic.param_groups[0]["lr"] == pytest.approx(0.5 * 4 / 4)  # three of its own steps were taken
    assert {id(p) for p in actor.param_groups[0]["params"]} == {id(p) for p in module.actor.trained()}
    assert {id(p) for p in critic.param_groups[0]["params"]} == {id(p) for p in module.critic.trained()}


def test_a_critics_step_that_is_not_finite_is_skipped_and_the_actor_still_learns(policy):
    module = with_critic(policy, critic=CriticConfig(lr=1e-3, mini_batches=1))
    packs = [
        replace(p, target=p.target * math.inf) if isinstance(p, ValuePack) else p
        for p in module.make_packs(make_groups(), 0)
    ]
    actor, critic = weights(module), critic_weights(module)
    fit(module, packs)
    assert not moved(critic, critic_weights(module))
    assert moved(actor, weights(module))
    assert module.iteration_values()["train/skipped_steps"] == 1


def test_the_actor_learns_the_same_whether_a_critic_is_trained_beside_it_or_not(policy):
    """Given the same advantages: a critic that says 0 of every state, in the first iteration."""
    alone, beside = with_critic(policy), with_critic(policy)
    groups = make_groups()
    packs = alone.make_packs(groups, 0)
    fit(alone, [pack for pack in packs if not isinstance(pack, ValuePack)])
    fit(beside, beside.make_packs(groups, 0))
    assert not moved(weights(alone), weights(beside))
    assert moved(critic_weights(alone), critic_weights(beside))


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("kl", [0.0, 0.1], ids=["no-kl", "kl"])
def test_a_shared_critic_moves_its_adapter_and_head_alone(policy, checkpointing, kl):
    """kl: the reference is the base without adapters, for which peft freezes them all for a while."""
    module = with_critic(
        policy,
        actor=ActorConfig(lora=LORA, gradient_checkpointing=checkpointing),
        critic=CriticConfig(backbone="shared", lr=1e-2),
        loss=LossConfig(kl_coef=kl),
        update=UpdateConfig(mini_batches=2),
    )
    with torch.no_grad():
        module.critic.value_head.weight.fill_(0.01)
    groups = make_groups()
    before, mine = weights(module), critic_weights(module)
    packs = module.make_packs(groups, 0)
    values = [pack for pack in packs if isinstance(pack, ValuePack)]
    fit(module, values)
    adapters = {name for name in mine if ".lora_" in name}
    touched = {name for name in adapters if ".lora_B." in name}  # half of a fresh adapter has no gradient yet
    now = critic_weights(module)
    assert touched | {"value_head.weight", "value_head.bias"} <= moved(mine, now)
    assert moved(before, weights(module)) <= adapters
    fit(module, [pack for pack in packs if not isinstance(pack, ValuePack)])
    assert not moved(now, critic_weights(module))
    assert {name for name in moved(before, weights(module)) if ".default." in name}
    assert not {name for name in moved(before, weights(module)) if ".lora_" not in name}


@pytest.mark.parametrize("backbone", ["own", "shared"])
def test_a_checkpoint_with_a_critic_is_loaded_strictly(policy, tmp_path, backbone):
    def build() -> LitTreeRL:
        return with_critic(
            policy,
            algorithm=TreePPO(),
            actor=ActorConfig(lora=LORA if backbone == "shared" else None),
            critic=CriticConfig(backbone=backbone, lr=1e-2),
            value_tree=ValueTree(),
        )

    module = build()
    packs = module.make_packs(make_groups(), 0)
    trainer = fit(module, packs, default_root_dir=tmp_path)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    stored = torch.load(tmp_path / "a.ckpt", weights_only=True)
    roots = {".".join(name.split(".")[:2]) for name in stored["state_dict"] if name.startswith("critic.")}
    assert roots == ({"critic.value_head"} if backbone == "shared" else {"critic.value_head", "critic.body"})
    assert len(stored["optimizer_states"]) == len(stored["lr_schedulers"]) == 2

    again = build()
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(again, DataLoader(packs, batch_size=None), ckpt_path=str(tmp_path / "a.ckpt"))
    assert not moved(critic_weights(module), critic_weights(again))
    assert not moved(weights(module), weights(again))
    assert moved(critic_weights(build()), critic_weights(again))
    assert again.explained_variance == pytest.approx(module.explained_variance, nan_ok=True)
    assert again.smoothed_variance == pytest.approx(module.smoothed_variance, nan_ok=True)
    assert len(again.value_tree) == len(module.value_tree) > 0
    assert again.value_tree.prior() == module.value_tree.prior()


def test_a_clipped_loss_begins_at_the_outputs_of_the_iterations_start(policy):
    module = with_critic(policy, critic=CriticConfig(lr=1e-2, mini_batches=2, loss=ValueLossConfig("bce", clip=0.1)))
    with torch.no_grad():
        module.critic.value_head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    packs = [pack for pack in module.make_packs(make_groups(), 0) if isinstance(pack, ValuePack)]
    with torch.no_grad():
        for pack in packs:
            assert torch.equal(pack.old, module.critic.values(pack.pack, pack.token))  # logits, as the clip takes them
    fit(module, packs)
    assert module.stats.critic.means()["value"] > 0


def test_values_are_those_of_the_trainers_precision(policy):
    module = with_critic(policy)
    with torch.no_grad():
        module.critic.value_head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    exact = module.critic_values(make_groups())[0][0].value
    module.trainer = L.Trainer(accelerator="cpu", precision="bf16-mixed", logger=False, enable_checkpointing=False)
    rough = module.critic_values(make_groups())[0][0].value
    assert not torch.equal(exact, rough)
    assert torch.allclose(exact, rough, atol=0.2)


# ---- what the module believes and measures ----


def test_the_smoothed_variance_is_an_exponential_mean_that_skips_what_is_unknown(policy):
    module = with_critic(policy)
    assert math.isnan(module.smoothed_variance)
    expected = None
    for found in (math.nan, 0.5, math.nan, -0.1, -math.inf, 0.3):
        module._measured(found)
        if not math.isnan(found):
            found = max(-1.0, found)  # one wild iteration is not to stay for good
            expected = found if expected is None else MOMENTUM * expected + (1 - MOMENTUM) * found
        if expected is None:
            assert math.isnan(module.smoothed_variance)
        else:
            assert module.smoothed_variance == pytest.approx(expected)


def test_beliefs_of_critic_and_value_tree_meet(policy):
    groups = make_groups()
    module = with_critic(policy, algorithm=TreePPO(), value_tree=ValueTree())
    with torch.no_grad():
        module.critic.value_head.bias.fill_(0.25)
    found = module.beliefs(groups)
    assert len(module.value_tree) > 0
    for one, some in zip(groups, found, strict=True):
        for tree, belief in zip(one.trees, some, strict=True):
            inner = set(tree.parent) - {-1}
            assert belief.value.tolist() == [0.25 if node in inner else 0.0 for node in range(len(tree))]
            assert len(belief.mean) == len(belief.count) == len(tree)
            assert math.isnan(belief.prior)
    assert {belief.prior for some in module.beliefs(groups) for belief in some} != {math.nan}
    bare = make_module(policy, algorithm=GRPO()).beliefs(groups)
    assert bare == [[Beliefs(), Beliefs()]] * 4


def test_a_value_tree_alone_measures_nothing_and_reports_its_size(policy):
    module = make_module(policy, algorithm=GRPO(baseline="apvt", normalisation="none"), value_tree=ValueTree())
    assert module.critic is None
    fit(module, module.make_packs(make_groups(), 0))
    values = module.iteration_values()
    assert values["apvt/nodes"] == len(module.value_tree)
    assert values["apvt/visits_mean"] > 0
    assert "train/explained_variance" not in values


def test_the_outlook_on_tasks(policy):
    module = with_critic(policy, algorithm=TreePPO(), value_tree=ValueTree(half_life=None))
    known = make_groups(count=2)
    module.value_tree.add(known[:1], 0)
    with torch.no_grad():
        module.critic.value_head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    tasks = [known[0].task, Task("new", "test", "new"), Task("mute", "test", "mute")]
    prompts = [[5, 6, 0], [5, 6, 1, 9], None]
    outlook = module.outlook(tasks, prompts)
    assert outlook.explained_variance is None  # never measured
    value = [belief.value for belief in outlook.tasks]
    for i in (0, 1):
        with torch.no_grad():
            hidden = module.critic.body.backbone(torch.tensor([prompts[i]])).last_hidden_state[0, -1]
            assert value[i] == pytest.approx(float(module.critic.value_head(hidden)), abs=1e-5)
    assert value[2] is None
    # the arena's keys are all one INVALID action; the root acted as often as it has children
    acted = sum(len(tree.children()[0]) for tree in known[0].trees)
    assert [belief.count for belief in outlook.tasks] == [acted, 0.0, 0.0]
    assert outlook.tasks[0].mean == module.value_tree.task_value(tasks[0]).mean
    module._measured(0.4)
    assert module.outlook(tasks, prompts).explained_variance == 0.4
    assert module.outlook([], []).tasks == []


def test_the_outlook_of_a_bce_critic_is_a_chance(policy):
    module = with_critic(policy, critic=CriticConfig(loss=ValueLossConfig("bce")))
    [belief] = module.outlook([Task("a", "test", "a")], [[5, 6]]).tasks
    assert belief.value == 0.5


def test_judging_a_growing_tree(policy):
    module = with_critic(policy, value_tree=ValueTree(half_life=None))
    with torch.no_grad():
        module.critic.value_head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    [one] = make_groups(count=1)
    tree = one.trees[0]
    values, means = module.judge(one.task, tree)
    expected = module.critic_values([RolloutGroup(one.task, [tree])])[0][0].value
    inner = sorted(set(tree.parent) - {-1})
    assert [values[node] for node in inner] == [float(expected[node]) for node in inner]
    assert all(math.isnan(mean) for mean in means[:1])  # nothing was added yet
    module.value_tree.add([one], 0)
    assert not math.isnan(module.judge(one.task, tree)[1][0])
    module.value_tree = None
    assert all(math.isnan(mean) for mean in module.judge(one.task, tree)[1])


def test_a_critic_that_diverged_is_named_where_it_judges(policy):
    module = with_critic(policy)
    with torch.no_grad():
        module.critic.value_head.bias.fill_(math.nan)
    with pytest.raises(ValueError, match="the critic's value of node 0 is nan, not finite"):
        module.judge(Task("t", "test", "?"), two_steps())


def test_states_that_only_failures_follow_are_judged_unknown(policy):
    """They can be forked from, but no value was read there: 0 would be an answer nobody gave."""
    module = with_critic(policy, value_tree=ValueTree(half_life=None))
    with torch.no_grad():
        module.critic.value_head.bias.fill_(0.5)
    values, _ = module.judge(Task("t", "test", "?"), two_steps())
    assert values[:2] == [0.5, 0.5]
    assert math.isnan(values[5])
    assert draw_by_critic([0, 1, 5], 2, values) == [0, 1]
    assert draw_by_gap([0, 1, 5], 2, values, [0.5, 0.6, 0.9, 0.9, 0.9, 0.9, 0.9]) == [1, 0]


# ---- what other rollouts say ----


def chains(seed: int, task: str) -> RolloutGroup:
    """Chains of one task whose action prefixes meet."""
    rng, trees = random.Random(seed), []
    for index in range(4):
        tree = Tree(task, index=index)
        tree.add_root([1, 2])
        node = 0
        for depth in range(length := rng.randint(1, 3)):
            last = depth == length - 1
            node = act(tree, node, rng.choice("ab"), rng.choice([0.0, 0.5, 1.0]), END if last else Status.OPEN)
        trees.append(tree)
    return RolloutGroup(Task(task, "test", task), trees)


@pytest.mark.parametrize("seed", range(5))
def test_advantages_over_the_mixture_are_gae_over_critic_and_other_episodes(seed):
    """Against plain means over the returns-to-go of the other chains that came through the same prefix."""
    groups = [chains(seed + 10 * i, str(i)) for i in range(2)]
    g = torch.Generator().manual_seed(seed)
    critic = [[torch.rand(len(t), generator=g, dtype=torch.float64) for t in one.trees] for one in groups]
    beliefs = [[Beliefs(value=v) for v in some] for some in critic]
    value_tree = ValueTree(half_life=None)
    beliefs = with_others(groups, value_tree, value_tree_beliefs(groups, value_tree, 0, beliefs))
    credits = TreePPO(values="mixture", prior_weight=1.5, gae_lambda=0.7, normalisation="none")(groups, beliefs)
    met = 0
    for one, some, values in zip(groups, credits, critic, strict=True):
        for tree, credit, v in zip(one.trees, some, values, strict=True):
            mixed = []
            for node in range(len(tree) - 1):
                prefix = tree.action_key[1 : node + 1]
                others = [
                    sum(other.reward[node + 1 :])
                    for other in one.trees
                    if other is not tree and len(other) > node + 1 and other.action_key[1 : node + 1] == prefix
                ]
                met += len(others) if node else 0
                mixed.append((sum(others) + 1.5 * float(v[node])) / (len(others) + 1.5))
            mixed.append(0.0)
            after = 0.0
            for node in range(len(tree) - 1, 0, -1):
                after = tree.reward[node] + mixed[node] - mixed[node - 1] + 0.7 * after
                assert float(credit.advantage[node, 0]) == pytest.approx(after, abs=1e-9)
    assert met > 0


# ---- what cannot go together ----


def test_a_checkpoint_of_a_run_with_a_critic_needs_one(policy):
    held = {"state_dict": with_critic(policy).state_dict()}
    with pytest.raises(SettingsError, match="its run had a critic, and this one has none; use algorithm, budget"):
        make_module(policy, algorithm=GRPO()).on_load_checkpoint(held)
    with pytest.raises(SettingsError, match="its run had no critic, and this one has one"):
        with_critic(policy).on_load_checkpoint({"state_dict": make_module(policy).state_dict()})


def test_a_checkpoint_of_another_model_says_what_does_not_fit(policy):
    held = {"state_dict": dict(make_module(policy).state_dict())}
    held["state_dict"]["actor.extra"] = held["state_dict"].pop("updates")
    message = r"another model \(it lacks updates, it has actor.extra; 1 missing, 1 too many\); use model.policy"
    with pytest.raises(SettingsError, match=message):
        make_module(policy).on_load_checkpoint(held)


def test_a_value_tree_of_other_settings_is_named(policy):
    held = {"state_dict": make_module(policy).state_dict(), "value_tree": ValueTree(half_life=3.0).state_dict()}
    with pytest.raises(SettingsError, match=r"ckpt_path: model\.value_tree\.half_life is 8\.0, but .* with 3\.0"):
        make_module(policy, value_tree=ValueTree()).on_load_checkpoint(held)


def test_an_estimator_that_reads_a_value_tree_needs_one():
    with pytest.raises(ValueError, match=r"this GRPO reads a value tree, and there is none: set model\.value_tree"):
        LitTreeRL(algorithm=GRPO(baseline="apvt", normalisation="none"))
    assert not LitTreeRL(algorithm=TreePPO()).algorithm.uses_value_tree  # does without
    assert LitTreeRL(algorithm=TreePPO(), value_tree=ValueTree()).algorithm.uses_value_tree
