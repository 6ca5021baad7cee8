"""The loss over unique tokens equals training every leaf's trajectory apart, in values and in gradients."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from lit_treerl.algorithms.aggregation import leaf_weights
from lit_treerl.algorithms.base import Credit
from lit_treerl.algorithms.losses import LossConfig, policy_loss
from lit_treerl.algorithms.node_weights import node_weights
from lit_treerl.algorithms.tree_grpo import TreeGRPO
from lit_treerl.modeling.actor import Actor
from lit_treerl.modeling.attention import AttentionKind, attention_kernel
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.packing import build_packs
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Tree
from tree_cases import group, random_tree

VOCAB = 29
TEMPERATURE = 0.8
AGGREGATIONS = [("token_mean", None, 0), ("sequence_mean", None, 1), ("fixed_length", 9, 2)]
CONFIG = LossConfig(clip_low=0.1, clip_high=0.3, dual_clip=1.5, kl_coef=0.07, entropy_coef=0.03, importance_cap=1.3)


def tiny_actor(kind: str = "qwen3", seed: int = 0, chunk: int = 2048, attention: AttentionKind = "tree") -> Actor:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[kind](
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=kind != "llama",
        initializer_range=0.3,
        pad_token_id=0,
        attn_implementation=attention_kernel(attention),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Actor(in_float64(AutoModelForCausalLM.from_config(config, dtype=torch.float64)), chunk).train()


def in_float64(model: torch.nn.Module) -> torch.nn.Module:
    """Hugging Face's norms compute in float32 whatever comes in, which would hide differences below 1e-8."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                exact = torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                setattr(module, name, exact)
    return model


def random_groups(seed: int, context: str, tasks: int = 2, failures: float = 0.15) -> list[RolloutGroup]:
    """Tasks of three trees each; two share their prompt, as trees of one task do, the third has another."""
    rng = random.Random(seed)
    groups = []
    for number in range(tasks):
        prompt = [rng.randrange(VOCAB) for _ in range(3)]
        trees = [
            random_tree(rng, context=context, task_id=f"t{number}", index=i, prompt=p, failures=failures, vocab=VOCAB)
            for i, p in enumerate((prompt, prompt, None))
        ]
        groups.append(RolloutGroup(Task(f"t{number}", "test", "?"), trees))
    return groups


def random_credits(groups: list[RolloutGroup], seed: int) -> list[list[Credit]]:
    """Credit that differs from node to node and leaf to leaf, of both signs: harder than any estimator's."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for members in groups:
        out.append([])
        for tree in members.trees:
            leaves = tree.training_leaves()
            advantage = torch.zeros(len(tree), len(leaves), dtype=torch.float64)
            for column, leaf in enumerate(leaves):
                path = tree.path(leaf)[1:]
                advantage[path, column] = torch.randn(len(path), generator=generator, dtype=torch.float64)
            out[-1].append(Credit(leaves, advantage))
    return out


# ---- the plain slow version: one ordinary causal forward for each leaf (for each turn in windows) ----


@dataclass
class Step:
    """One action of one leaf's trajectory."""

    context: list[int]
    action: list[int]
    sampler: list[float]
    advantage: float
    weight: float


def plain_steps(groups: list[RolloutGroup], credits: list[list[Credit]], weights: list[list[Tensor]]) -> list[Step]:
    steps = []
    for members, group_credits, group_weights in zip(groups, credits, weights, strict=True):
        for tree, credit, weight in zip(members.trees, group_credits, group_weights, strict=True):
            for column, leaf in enumerate(credit.leaves):
                for node in tree.path(leaf)[1:]:
                    steps.append(
                        Step(
                            tree.context_ids(tree.parent[node]),
                            tree.ids[node][: tree.action_len[node]],
                            tree.logprobs[node],
                            float(credit.advantage[node, column]),
                            float(weight[column] if weight.dim() == 1 else weight[node, column]),
                        )
                    )
    return steps


def plain_distribution(actor: Actor, step: Step) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of a step's action tokens by an ordinary causal forward over its context."""
    ids = torch.tensor([step.context + step.action])
    logits = actor.causal_lm(input_ids=ids, use_cache=False).logits[0, len(step.context) - 1 : -1] / TEMPERATURE
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(-1, torch.tensor(step.action)[:, None]).squeeze(-1)
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


def plain_loss(
    actor: Actor, old: Actor | None, reference: Actor | None, steps: list[Step], config: LossConfig
) -> Tensor:
    """PPO as in the textbook, leaf by leaf and token by token."""
    total = torch.zeros((), dtype=torch.float64)
    for step in steps:
        new, entropy = plain_distribution(actor, step)
        before = new.detach() if old is None else plain_distribution(old, step)[0].detach()
        ratio = (new - before).clamp(-config.log_ratio_clamp, config.log_ratio_clamp).exp()
        gain = torch.min(
            ratio * step.advantage, ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * step.advantage
        )
        if config.dual_clip is not None and step.advantage < 0:
            gain = torch.max(gain, torch.tensor(config.dual_clip * step.advantage, dtype=torch.float64))
        if config.importance_cap is not None:
            gap = before - torch.tensor(step.sampler, dtype=torch.float64)
            gain = gain * gap.exp().clamp(max=config.importance_cap)
        total = total - step.weight * gain.sum()
        if reference is not None:
            log_ratio = plain_distribution(reference, step)[0].detach() - new
            total = total + config.kl_coef * step.weight * (log_ratio.exp() - 1 - log_ratio).sum()
        total = total - config.entropy_coef * step.weight * entropy.sum()
    return total


# ---- the two sides ----


def gradients(actor: Actor) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in actor.named_parameters() if p.grad is not None}


def packed_loss(actor: Actor, old: Actor | None, reference: Actor | None, packs: list[Pack], config: LossConfig):
    """Sum over packs, each with its own backward, as a training step does; gradients are left on ``actor``."""
    actor.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for pack in packs:
        with torch.no_grad():
            before = None if old is None else old.logprobs(pack, TEMPERATURE)[0]
            ref = None if reference is None else reference.logprobs(pack, TEMPERATURE)[0]
        pack = replace(pack, old_logprobs=before, ref_logprobs=ref)
        loss, _ = policy_loss(pack, *actor.logprobs(pack, TEMPERATURE), config)
        loss.backward()
        total = total + loss.detach()
    return total, gradients(actor)


def assert_equal(actor, old, reference, packs, steps, config) -> None:
    loss, grads = packed_loss(actor, old, reference, packs, config)
    actor.zero_grad()
    expected = plain_loss(actor, old, reference, steps, config)
    expected.backward()
    assert float(expected.detach().abs()) > 1e-3  # something is being compared
    assert abs(float(loss - expected.detach())) < 1e-9
    expected_grads = gradients(actor)
    assert grads.keys() == expected_grads.keys()
    assert max(float(g.abs().max()) for g in grads.values()) > 1e-4
    for name, grad in grads.items():
        assert float((grad - expected_grads[name]).abs().max()) < 1e-9, name


@pytest.mark.parametrize("attention", ["tree", "dense"])
@pytest.mark.parametrize("context", ["growing", "window"])
@pytest.mark.parametrize(("mode", "fixed_length", "seed"), AGGREGATIONS)
def test_off_policy_loss_and_gradients_equal_every_leaf_apart(context, mode, fixed_length, seed, attention):
    groups = random_groups(seed, context)
    credits = random_credits(groups, seed)
    weights = leaf_weights(groups, credits, mode, fixed_length)
    actor, old, reference = tiny_actor(seed=1, chunk=7, attention=attention), tiny_actor(seed=1), tiny_actor(seed=2)
    with torch.no_grad():  # far enough from the old policy that every clip is at work
        for p in actor.parameters():
            p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed), dtype=p.dtype)
    packs = build_packs(groups, credits, weights, max_tokens=60, dtype=torch.float64)
    assert len(packs) > 1
    assert_equal(actor, old, reference, packs, plain_steps(groups, credits, weights), CONFIG)


@pytest.mark.parametrize("context", ["growing", "window"])
def test_first_step_with_tree_grpo_equals_every_leaf_apart_and_zero_leaves_may_be_skipped(context):
    groups = random_groups(5, context, tasks=3)
    credits = TreeGRPO()(groups)
    weights = leaf_weights(groups, credits, "token_mean")
    config = LossConfig(importance_cap=None)
    steps = plain_steps(groups, credits, weights)
    actor = tiny_actor()
    for skip in (False, True):
        packs = build_packs(groups, credits, weights, max_tokens=1000, skip_zero=skip, dtype=torch.float64)
        assert len(packs) == 1
        assert_equal(actor, None, None, packs, steps, config)


@pytest.mark.parametrize("context", ["growing", "window"])
def test_tokens_counted_once_are_leaves_with_shared_weights(context):
    groups = random_groups(4, context)
    credits = random_credits(groups, 4)
    weights = node_weights(groups, credits, "sequence_mean", count="once")
    actor, old = tiny_actor(seed=1), tiny_actor(seed=4)
    packs = build_packs(groups, credits, weights, max_tokens=60, dtype=torch.float64)
    config = replace(CONFIG, kl_coef=0.0)
    assert_equal(actor, old, None, packs, plain_steps(groups, credits, weights), config)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_other_architectures(kind):
    groups = random_groups(3, "growing", tasks=1)
    credits = random_credits(groups, 3)
    weights = leaf_weights(groups, credits, "sequence_mean")
    packs = build_packs(groups, credits, weights, max_tokens=1000, dtype=torch.float64)
    config = replace(CONFIG, kl_coef=0.0)
    assert_equal(tiny_actor(kind), tiny_actor(kind, seed=4), None, packs, plain_steps(groups, credits, weights), config)


def test_every_clip_is_at_work_in_the_proof():
    """The cases above would prove little if no token were clipped."""
    groups = random_groups(0, "growing")
    credits = random_credits(groups, 0)
    weights = leaf_weights(groups, credits, "token_mean")
    actor, old = tiny_actor(seed=1), tiny_actor(seed=1)
    with torch.no_grad():
        for p in actor.parameters():
            p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0), dtype=p.dtype)
        (pack,) = build_packs(groups, credits, weights, max_tokens=1000, dtype=torch.float64)
        ratio = (actor.logprobs(pack, TEMPERATURE)[0] - old.logprobs(pack, TEMPERATURE)[0]).exp()
    up, down = pack.positive > 0, pack.negative < 0
    assert ((ratio > 1 + CONFIG.clip_high) & up).any()
    assert ((ratio < 1 - CONFIG.clip_low) & down).any()
    assert CONFIG.dual_clip is not None
    assert ((ratio > CONFIG.dual_clip) & down).any()
    assert (up & down).any()  # leaves that disagree share a token


# ---- masks ----


def golden_pack() -> tuple[Pack, Tree]:
    """One trajectory: prompt [1 2], action [3 4], observation [5 6 7], action [8], observation [9]."""
    tree = Tree("gold")
    tree.add_root([1, 2])
    node = tree.add_action(0, [3, 4], [-1.0, -1.0], 0)
    tree.observe(node, [5, 6, 7])
    leaf = tree.add_action(node, [8], [-1.0], 0)
    tree.observe(leaf, [9], reward=1.0)
    credit = Credit([leaf], torch.tensor([[0.0], [1.0], [1.0]], dtype=torch.float64))
    groups, credits = [group(tree)], [[credit]]
    (pack,) = build_packs(groups, credits, leaf_weights(groups, credits), max_tokens=99, dtype=torch.float64)
    return pack, tree


def logit_gradient(pack: Pack) -> Tensor:
    """Gradient [N, V] of the policy loss by the logits after each token, where the loss may choose its tokens."""
    logits = torch.randn(len(pack), VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    logprobs = logits.log_softmax(-1)[pack.parent].gather(-1, pack.ids[:, None]).squeeze(-1)
    loss, _ = policy_loss(pack, logprobs, torch.zeros_like(logprobs), LossConfig(importance_cap=None))
    loss.backward()
    assert logits.grad is not None
    return logits.grad


def test_golden_mask_trains_what_the_policy_sampled_and_nothing_else():
    pack, _ = golden_pack()
    assert pack.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert pack.action.tolist() == [False, False, True, True, False, False, False, True]
    # the hidden states after 2, 3 and 7 predict 3, 4 and 8
    trained = logit_gradient(pack).abs().sum(-1) > 0
    assert trained.tolist() == [False, True, True, False, False, False, True, False]


def test_a_mask_shifted_by_one_would_be_caught():
    pack, _ = golden_pack()
    for shift in (-1, 1):
        shifted = replace(pack, action=pack.action.roll(shift), positive=pack.positive.roll(shift))
        trained = logit_gradient(shifted).abs().sum(-1) > 0
        assert trained.tolist() != [False, True, True, False, False, False, True, False]


def test_no_gradient_reaches_an_observation_token_whatever_the_weights():
    pack, _ = golden_pack()
    grad = logit_gradient(pack)
    everywhere = torch.where(pack.action, pack.positive, torch.full_like(pack.positive, 99.0))
    again = logit_gradient(replace(pack, positive=everywhere, negative=-everywhere * ~pack.action, weight=everywhere))
    assert torch.equal(grad, again)
    predicts_action = torch.zeros(len(pack), dtype=torch.bool)
    predicts_action[pack.parent[pack.action]] = True
    assert bool((grad[~predicts_action] == 0).all())


@pytest.mark.parametrize("seed", range(5))
def test_random_trees_train_just_their_action_tokens(seed):
    groups = random_groups(seed, "growing")
    credits = random_credits(groups, seed)
    (pack,) = build_packs(groups, credits, leaf_weights(groups, credits), max_tokens=9999, dtype=torch.float64)
    assert bool((pack.weight[~pack.action] == 0).all())
    assert bool((pack.weight[pack.action] > 0).all())
    grad = logit_gradient(pack)
    predicts_action = torch.zeros(len(pack), dtype=torch.bool)
    predicts_action[pack.parent[pack.action]] = True
    assert bool((grad[~predicts_action] == 0).all())
    assert bool((grad[predicts_action].abs().sum(-1) > 0).all())


def test_observation_tokens_still_inform_the_actions_after_them():
    """They are context: the loss depends on them through attention, not through their own log-probs."""
    pack, _ = golden_pack()
    actor = tiny_actor()
    with torch.no_grad():
        before = actor.logprobs(pack)[0]
        after = actor.logprobs(replace(pack, ids=torch.where(pack.ids == 6, 20, pack.ids)))[0]
    assert torch.equal(before[:4], after[:4])
    assert abs(float(before[7] - after[7])) > 1e-6
    assert before[~pack.action].tolist() == [0.0] * 5
