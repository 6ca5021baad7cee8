"""LitTreeRL's optimizer steps against a plain PyTorch loop over whole trajectories."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace

import lightning as L
import pytest
import torch
from tiny_models import VOCAB_SIZE, save_tiny_policy
from torch.utils.data import DataLoader
from tree_cases import chain_tree, group, random_tree

from lit_treerl.algorithms.losses import LossConfig
from lit_treerl.algorithms.tree_grpo import TreeGRPO
from lit_treerl.modeling.pack import Pack
from lit_treerl.module import LitTreeRL
from lit_treerl.policy_module import ActorConfig, OptimizerConfig
from lit_treerl.schedules import ScheduleConfig
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.tree import RolloutGroup
from lit_treerl.updates import UpdateConfig

LORA = {"r": 2, "lora_alpha": 8}
INTER = TreeGRPO(level="inter", normalisation="none")  # A = R - mean of the task's leaves
LR = 2e-3


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


def make_groups(seed: int = 0, count: int = 4) -> list[RolloutGroup]:
    rng = random.Random(seed)
    return [
        group(*(random_tree(rng, prompt=[5, 6, i], index=t, vocab=VOCAB_SIZE) for t in range(2)), task_id=str(i))
        for i in range(count)
    ]


def make_module(policy, cls=LitTreeRL, **settings) -> LitTreeRL:
    defaults = {"policy": str(policy), "algorithm": INTER, "actor_lr": LR}
    module = cls(**(defaults | settings))
    module.configure_model()
    return module


def fit(module: L.LightningModule, packs: list[Pack], **settings) -> L.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, enable_model_summary=False, **quiet, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, DataLoader(packs, batch_size=None))
    return trainer


def weights(module: LitTreeRL) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.actor.named_parameters()}


class Recorder(LitTreeRL):
    """Keeps the gradients of every step, before they are clipped."""

    def optimizer_step_now(self):
        self.gradients = getattr(self, "gradients", [])
        self.gradients.append([p.grad.clone() for p in self.actor.parameters() if p.requires_grad])
        return super().optimizer_step_now()


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


# ---- frozen log-probs ----


def test_old_logprobs_are_computed_for_later_steps_only(policy):
    module = make_module(policy, update=UpdateConfig(mini_batches=2, inner_epochs=2, max_tokens_per_pack=60))
    packs = module.make_packs(make_groups(), iteration=0)
    first = next(i for i, pack in enumerate(packs) if pack.step_end) + 1
    assert first > 1
    assert [pack.old_logprobs is None for pack in packs] == [True] * first + [False] * (len(packs) - first)
    assert all(pack.ref_logprobs is None for pack in packs)
    for pack in packs[first:]:
        with torch.no_grad():
            assert torch.equal(pack.old_logprobs, module.actor.logprobs(pack)[0])


def test_the_temperature_of_the_sampling_reaches_the_logprobs(policy):
    from transformers import AutoModelForCausalLM

    module = make_module(policy, update=UpdateConfig(mini_batches=1, inner_epochs=2), loss=LossConfig(kl_coef=0.1))
    module.temperature = 0.5
    [one] = make_groups(count=1)
    tree = one.trees[0]
    pack = module.make_packs([RolloutGroup(one.task, [tree])], iteration=0)[1]
    model, leaf = AutoModelForCausalLM.from_pretrained(policy), tree.training_leaves()[0]
    ids = [token for node in tree.path(leaf) for token in tree.ids[node]]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    expected = (logits / 0.5).log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    first = len(tree.ids[0])  # the leaf's own tokens are somewhere in the pack: compare its first action's
    count = tree.action_len[tree.path(leaf)[1]]
    wanted = expected[first - 1 : first - 1 + count]
    for column in (pack.old_logprobs, pack.ref_logprobs):
        got = [
            column[i : i + count]
            for i in range(len(pack) - count + 1)
            if pack.ids[i : i + count].tolist() == ids[first : first + count] and pack.action[i : i + count].all()
        ]
        assert any(torch.allclose(part, wanted, atol=1e-5) for part in got)


def test_the_reference_is_loaded_for_kl_only_and_stays_out_of_checkpoints(policy, tmp_path):
    assert make_module(policy).reference is None
    module = make_module(policy, loss=LossConfig(kl_coef=0.1))
    assert not any(p.requires_grad for p in module.reference.parameters())
    packs = module.make_packs(make_groups(), iteration=0)
    trainer = fit(module, packs, default_root_dir=tmp_path)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    state = torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"]
    assert {name.split(".")[0] for name in state} == {"actor", "updates"}

    again = make_module(policy, loss=LossConfig(kl_coef=0.1))
    start = {name: value.clone() for name, value in again.reference.state_dict().items()}
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(again, DataLoader(packs, batch_size=None), ckpt_path=str(tmp_path / "a.ckpt"))
    trained = weights(module)
    assert all(torch.equal(value, trained[name]) for name, value in weights(again).items())
    assert all(torch.equal(value, start[name]) for name, value in again.reference.state_dict().items())


def test_lora_trains_its_adapter_alone_and_its_reference_is_the_base(policy):
    module = make_module(policy, actor=ActorConfig(lora=LORA), loss=LossConfig(kl_coef=0.1))
    assert module.reference is None
    base = make_module(policy)
    before = weights(module)
    packs = module.make_packs(make_groups(), iteration=0)
    fit(module, packs)
    after = weights(module)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(".lora_" in name for name in moved)
    again = module.make_packs(make_groups(), iteration=0)
    with torch.no_grad():
        for pack in again:
            assert torch.allclose(pack.ref_logprobs, base.actor.logprobs(pack)[0], atol=1e-6)
            assert not torch.allclose(module.actor.logprobs(pack)[0], pack.ref_logprobs, atol=1e-4)


def test_the_learning_rate_follows_the_schedule_per_optimizer_step(policy):
    config = OptimizerConfig(schedule=ScheduleConfig(warmup_steps=4))
    module = make_module(policy, optimizer=config, update=UpdateConfig(mini_batches=2))
    trainer = fit(module, module.make_packs(make_groups(), iteration=0))
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(LR * 3 / 4)  # of the third step
    assert int(module.updates) == 2
