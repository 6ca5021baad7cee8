"""Old and reference log-probs: when they are computed, by what, and what stays out of checkpoints."""

from __future__ import annotations

import warnings

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from lit_treerl.algorithms.losses import LossConfig
from lit_treerl.policy_module import ActorConfig
from lit_treerl.trees.tree import RolloutGroup
from lit_treerl.updates import UpdateConfig
from tiny_models import save_tiny_policy
from training import fit, make_groups, make_module, weights

LORA = {"r": 2, "lora_alpha": 8}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


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


def test_ratios_begin_at_one_in_the_trainers_precision_too(policy):
    """Before the weights move old and reference log-probs equal those of the training step bit for bit."""
    module = make_module(policy, update=UpdateConfig(mini_batches=2), loss=LossConfig(kl_coef=0.1))
    exact = module.make_packs(make_groups(), iteration=0)[-1]
    module.trainer = L.Trainer(accelerator="cpu", precision="bf16-mixed", logger=False, enable_checkpointing=False)
    pack = module.make_packs(make_groups(), iteration=0)[-1]
    with module.trainer.precision_plugin.train_step_context():
        new = module.actor.logprobs(pack)[0].detach()
    assert torch.equal(pack.old_logprobs, new)
    assert torch.equal(pack.ref_logprobs, new)
    assert not torch.equal(exact.old_logprobs, new)


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
