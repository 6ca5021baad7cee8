"""FSDP2 in two processes on the CPU: log-probs, values and gradients of sharded models are those of whole ones."""

from __future__ import annotations

import socket

import pytest
import torch
from test_tree_attention import random_pack

from lit_treerl.modeling.actor import Actor
from lit_treerl.modeling.critic import Critic
from lit_treerl.modeling.sharding import shard
from sharded_models import loaded, outcome, work
from tiny_models import save_tiny_policy

LORA = {"lora": {"r": 4, "init_lora_weights": False}}


@pytest.mark.parametrize(
    ("kind", "family", "options"),
    [
        ("actor", "qwen3", {}),
        ("actor", "llama", {"gradient_checkpointing": True}),
        ("actor", "qwen2", LORA),
        ("critic", "qwen3", {}),
    ],
    ids=["actor", "checkpointing", "lora", "critic"],
)
def test_sharded_models_say_and_learn_what_whole_ones_do(kind, family, options, tmp_path):
    policy = str(save_tiny_policy(tmp_path / "policy", kind=family))
    packs = [random_pack(seed) for seed in (1, 2)]
    whole = [outcome(loaded(kind, policy, options), pack) for pack in packs]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, kind, policy, options, packs, str(tmp_path)), nprocs=2)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for (said, _), one in zip(whole, found, strict=True):
        torch.testing.assert_close(one["said"], said, atol=1e-5, rtol=1e-5)
    assert whole[0][1].keys() == found[0]["gradients"].keys() == found[1]["gradients"].keys()
    for name, gradient in found[0]["gradients"].items():
        mean = (whole[0][1][name] + whole[1][1][name]) / 2
        torch.testing.assert_close(gradient, mean, atol=1e-5, rtol=1e-4)
        assert torch.equal(gradient, found[1]["gradients"][name])


def test_a_critic_on_the_actors_base_is_no_model_of_its_own(tmp_path):
    actor = Actor.from_pretrained(save_tiny_policy(tmp_path / "policy", kind="qwen3"), lora={"r": 4})
    with pytest.raises(ValueError, match="shard the actor"):
        shard(Critic.on_actor(actor, {"r": 4}), None)
