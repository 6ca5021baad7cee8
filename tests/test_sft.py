"""The supervised warm start against cross-entropy written out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from test_rollout_tokens import TOKENS

from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.data.episodes import EpisodeDataModule, EpisodeSource, encode_episode
from lit_treerl.settings import SettingsError
from lit_treerl.sft import LitSFT
from scripted import ScriptedSampler, ToyEnv, wandering
from tiny_models import save_tiny_policy
from training import fit, weights

ROWS = [
    {
        "prompt": [{"role": "user", "content": f"who {i}"}],
        "turns": [{"action": "search " * (i + 1), "observation": "information <|im_end|>"}, {"action": "answer x"}],
    }
    for i in range(5)
]


class Listed(EpisodeSource):
    def load(self):
        return ROWS


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


def data_module(seed: int = 0, epoch: int = 0, **settings) -> EpisodeDataModule:
    sampler = TreeSampler(ToyEnv(), sampler=ScriptedSampler(wandering()))
    sampler.seed, sampler._tokens = seed, TOKENS
    data = EpisodeDataModule(Listed(), **settings)
    module = SimpleNamespace(watch_sources=lambda names: None)
    fit_loop = SimpleNamespace(epoch_progress=SimpleNamespace(current=SimpleNamespace(processed=epoch)))
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        callbacks=[sampler], lightning_module=module, global_rank=0, world_size=1, fit_loop=fit_loop
    )
    data.setup("fit")
    return data


def cross_entropy(model, rows, observation_weight: float) -> torch.Tensor:
    """Weighted mean negative log-likelihood over the rows' action (1) and observation tokens, one forward a row."""
    total = torch.zeros(())
    weight_sum = 0.0
    for row in rows:
        [(prompt, turns)] = encode_episode(row, TOKENS)
        ids, weight = list(prompt), [0.0] * len(prompt)
        for action, observation in turns:
            ids += [*action, *observation]
            weight += [1.0] * len(action) + [observation_weight] * len(observation)
        logprobs = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        chosen = logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
        total = total - (chosen * torch.tensor(weight[1:])).sum()
        weight_sum += sum(weight)
    return total / weight_sum


@pytest.mark.parametrize("observation_weight", [0.0, 0.3])
def test_loss_and_step_equal_cross_entropy_by_hand(policy, observation_weight):
    from transformers import AutoModelForCausalLM

    data = data_module(batch_size=3, observation_weight=observation_weight, max_tokens_per_pack=60)
    packs = list(data.train_dataloader())
    assert [pack.step_end for pack in packs].count(True) == 2
    assert len(packs) > 2
    module = LitSFT(policy=str(policy), actor_lr=1e-3)
    module.configure_model()
    fit(module, packs)

    model = AutoModelForCausalLM.from_pretrained(policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    rows, losses, norms = data.slice(0, 5), [], []
    for batch in (rows[:3], rows[3:]):
        loss = cross_entropy(model, batch, observation_weight)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        losses.append(float(loss.detach()))
    values = module.iteration_values()
    assert values["train/loss_actor"] == pytest.approx(sum(losses) / 2, rel=1e-4)
    assert values["train/grad_norm_actor"] == pytest.approx(sum(norms) / 2, rel=1e-3)
    plain = {name: value.detach() for name, value in model.named_parameters()}
    apart = [(value - plain[name.removeprefix("model.")]).abs().mean() for name, value in weights(module).items()]
    assert max(apart) < 1e-5  # one step moves a weight by up to 1e-3


def test_the_stream_of_episodes_takes_each_once_a_pass_in_a_new_order():
    data = data_module()
    stream = data.slice(0, 20)
    places = [ROWS.index(row) for row in stream]
    passes = [places[i : i + 5] for i in range(0, 20, 5)]
    assert [sorted(one) for one in passes] == [[0, 1, 2, 3, 4]] * 4
    assert len({tuple(one) for one in passes}) > 1
    assert data_module().slice(7, 6) == stream[7:13]  # a resumed run goes on in the same place
    assert data_module(seed=1).slice(0, 20) != stream


def test_epochs_go_on_where_the_last_one_ended():
    epochs = [data_module(epoch=epoch, episodes_per_epoch=2).train_dataloader() for epoch in (0, 1)]
    sizes = [sum(int(pack.action.sum()) for pack in packs) for packs in epochs]
    rows = data_module().slice(0, 4)

    def actions(some):
        return sum(len(action) for row in some for _, turns in encode_episode(row, TOKENS) for action, _ in turns)

    assert sizes == [actions(rows[:2]), actions(rows[2:])]


def test_fit_needs_demonstrations():
    data = EpisodeDataModule()
    data.trainer = SimpleNamespace(lightning_module=SimpleNamespace(watch_sources=lambda names: None))  # type: ignore[assignment]
    with pytest.raises(SettingsError, match=r"data\.episodes names no source of demonstrations, and `fit` needs one"):
        data.setup("fit")
