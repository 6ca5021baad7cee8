"""LitTreeRL's optimizer steps against a plain PyTorch loop over whole trajectories."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from lit_treerl.algorithms.losses import LossConfig
from lit_treerl.module import LitTreeRL
from lit_treerl.optimizers import OptimizerConfig
from lit_treerl.schedules import ScheduleConfig
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.updates import UpdateConfig
from tiny_models import save_tiny_policy
from training import LR, fit, make_groups, make_module, weights
from tree_cases import chain_tree, group


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


class Recorder(LitTreeRL):
    """Keeps the gradients of every step, before they are clipped."""

    def step_actor(self):
        self.gradients = getattr(self, "gradients", [])
        self.gradients.append([p.grad.clone() for p in self.actor.parameters() if p.requires_grad])
        return super().step_actor()


# ---- the plain version ----


def distributions(model, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)


def trajectories(groups):
    """(ids, is action, sampler log-probs, advantage, number of actions) of every leaf, its whole path written out."""
    for one in groups:
        returns = [tree.leaf_return(leaf) for tree, leaf in one.leaves()]
        for (tree, leaf), value in zip(one.leaves(), returns, strict=True):
            ids, action, sampled = [], [], []
            for node in tree.path(leaf):
                rest = len(tree.ids[node]) - tree.action_len[node]
                ids += tree.ids[node]
                action += [True] * tree.action_len[node] + [False] * rest
                sampled += tree.logprobs[node] + [0.0] * rest
            yield ids, action, sampled, value - sum(returns) / len(returns)


def plain_loss(model, old_model, ref_model, groups, config: LossConfig) -> torch.Tensor:
    """Every leaf trained apart: clipped surrogate with dual clip, truncated importance, KL and entropy."""
    rows = list(trajectories(groups))
    total = sum(sum(action) for _, action, _, _ in rows)
    loss = torch.zeros(())
    for ids, action, sampled, advantage in rows:
        picked = [i for i in range(1, len(ids)) if action[i]]
        target = torch.tensor([ids[i] for i in picked])[:, None]
        places = torch.tensor([i - 1 for i in picked])
        full = distributions(model, ids)[places]
        new = full.gather(-1, target)[:, 0]
        with torch.no_grad():
            old = distributions(old_model, ids)[places].gather(-1, target)[:, 0]
            ref = distributions(ref_model, ids)[places].gather(-1, target)[:, 0]
        ratio = (new - old).exp()
        objective = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        if advantage < 0:
            objective = objective.clamp(min=3.0 * advantage)
        importance = (old - torch.tensor([sampled[i] for i in picked])).exp().clamp(max=2.0)
        kl = (ref - new).exp() - (ref - new) - 1
        entropy = -(full.exp() * full).sum(-1)
        per_token = importance * objective - config.kl_coef * kl + config.entropy_coef * entropy
        loss = loss - per_token.sum() / total
    return loss


@pytest.mark.parametrize(
    "loss", [LossConfig(), LossConfig(kl_coef=0.1, entropy_coef=0.05)], ids=["plain", "kl+entropy"]
)
def test_optimizer_steps_equal_a_plain_loop_over_trajectories(policy, loss):
    """Gradients of two steps, to 2e-4 of their norm; the second has ratios other than 1. Then AdamW itself, exactly."""
    from transformers import AutoModelForCausalLM

    groups = make_groups()
    module = make_module(policy, Recorder, loss=loss, update=UpdateConfig(mini_batches=2, max_tokens_per_pack=60))
    before = weights(module)
    packs = module.make_packs(groups, iteration=7)
    assert sum(pack.step_end for pack in packs) == 2
    assert len(packs) > 2  # gradients add over packs
    fit(module, packs)

    order = list(range(4))
    random.Random(derive_seed("mini-batches", 7)).shuffle(order)
    start = AutoModelForCausalLM.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy)
    plain = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    adam = {name: torch.nn.Parameter(value.clone()) for name, value in before.items()}
    exact = torch.optim.AdamW(adam.values(), lr=LR, weight_decay=0.0)
    losses = []
    for step, batch in enumerate((order[:2], order[2:])):
        value = plain_loss(model, start, start, [groups[i] for i in batch], loss)
        losses.append(float(value.detach()))
        plain.zero_grad()
        value.backward()
        expected = torch.cat([p.grad.flatten() for p in model.parameters()])
        got = torch.cat([g.flatten() for g in module.gradients[step]])
        assert (expected - got).norm() < 2e-4 * expected.norm()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        plain.step()
        for p, gradient in zip(adam.values(), module.gradients[step], strict=True):
            p.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_(adam.values(), 1.0)
        exact.step()
    after = weights(module)
    assert all(torch.equal(after[name], p) for name, p in adam.items())
    moved = sum(float((after[n] - p).abs().sum()) for n, p in before.items())
    assert moved > 0
    values = module.iteration_values()
    assert values["train/loss_actor"] == pytest.approx(sum(losses) / 2, rel=1e-4)
    norms = [float(torch.cat([g.flatten() for g in gradients]).norm()) for gradients in module.gradients]
    assert values["train/grad_norm_actor"] == pytest.approx(sum(norms) / 2, rel=1e-5)
    assert int(module.updates) == 2


def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted(policy):
    module = make_module(policy, update=UpdateConfig(mini_batches=2))
    bad, good = module.make_packs(make_groups(), iteration=0)
    bad = replace(bad, positive=bad.positive * float("inf"))
    fit(module, [bad])
    start = weights(make_module(policy))
    assert all(torch.equal(value, start[name]) for name, value in weights(module).items())
    assert (module.iteration_values()["train/skipped_steps"], int(module.updates)) == (1, 0)
    assert all(p.grad is None for p in module.actor.parameters())

    one, other = make_module(policy), make_module(policy)
    fit(one, [bad, good])
    fit(other, [good])
    kept, skipped = weights(other), weights(one)
    assert all(torch.equal(kept[name], skipped[name]) for name in kept)  # nothing of the bad step is left over
    assert int(one.updates) == 1


def test_an_iteration_without_signal_leaves_the_weights_alone(policy):
    module = make_module(policy)
    silent = [group(chain_tree(1.0, 1.0), chain_tree(1.0), task_id="a"), group(chain_tree(0.0), task_id="b")]
    packs = module.make_packs(silent, iteration=0)
    assert [len(pack) for pack in packs] == [0]
    fit(module, packs)
    start = weights(make_module(policy))
    assert all(torch.equal(value, start[name]) for name, value in weights(module).items())
    values = module.iteration_values()
    assert values["rollout/zero_signal_groups"] == 2
    assert values["train/loss_actor"] == values["train/grad_norm_actor"] == values["train/skipped_steps"] == 0
    assert int(module.updates) == 0


def test_the_learning_rate_follows_the_schedule_per_optimizer_step(policy):
    config = OptimizerConfig(schedule=ScheduleConfig(warmup_steps=4))
    module = make_module(policy, optimizer=config, update=UpdateConfig(mini_batches=2))
    trainer = fit(module, module.make_packs(make_groups(), iteration=0))
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(LR * 3 / 4)  # of the third step
    assert int(module.updates) == 2
