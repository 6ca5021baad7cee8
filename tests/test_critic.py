"""The critic as a model: its head, and what it shares with the actor and what not."""

from __future__ import annotations

import random

import pytest
import torch
from test_actor import assert_same_policy, stir, tree_pack

from lit_treerl.algorithms.losses import LossConfig, policy_loss
from lit_treerl.algorithms.value_loss import ValueLossConfig, predicted_returns, value_loss
from lit_treerl.critic_building import build_critic
from lit_treerl.critic_training import CriticConfig
from lit_treerl.modeling.actor import Actor
from lit_treerl.modeling.critic import Critic
from lit_treerl.modeling.value_packs import ValuePack, value_packs
from lit_treerl.policy_module import ActorConfig
from lit_treerl.settings import SettingsError
from tiny_models import VOCAB_SIZE, save_tiny_policy
from tree_cases import group, random_tree

LORA = {"r": 2, "lora_alpha": 4}
pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("untied"), kind="llama", tie=False)


def state_pack(seed: int = 0) -> ValuePack:
    rng = random.Random(seed)
    members = [group(*(random_tree(rng, prompt=[5, 6, 7], index=i, vocab=VOCAB_SIZE) for i in range(2)))]
    (pack,) = value_packs(members, max_tokens=9999, token_level=True)
    return pack.with_targets(lambda place: (1.0, 0.1))


def pair(policy, *, checkpointing: bool = False) -> tuple[Actor, Critic]:
    """An actor and a critic on one base, both moved away from where they began."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        actor = stir(Actor.from_pretrained(policy, lora=LORA, gradient_checkpointing=checkpointing))
        critic = Critic.on_actor(actor, LORA)
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in critic.trained():
            p += 0.05 * torch.randn(p.shape, generator=g)
    return actor, critic


def loss_of(critic: Critic, pack: ValuePack) -> torch.Tensor:
    assert pack.target is not None
    assert pack.weight is not None
    return value_loss(critic.values(pack.pack, pack.token), pack.target, pack.weight)[0]


def with_gradient(module: torch.nn.Module) -> set[str]:
    return {name for name, p in module.named_parameters() if p.grad is not None and bool(p.grad.any())}


# ---- the head ----


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@torch.no_grad()
def test_a_fresh_critic_says_the_same_of_every_state(policy, shared):
    actor = stir(Actor.from_pretrained(policy, lora=LORA))
    critic = Critic.on_actor(actor, LORA) if shared else Critic.from_pretrained(policy)
    pack = state_pack()
    values = critic.values(pack.pack, pack.token)
    assert values.shape == (len(pack),)
    assert not values.any()
    assert predicted_returns(values, "bce").tolist() == [0.5] * len(pack)
    critic.value_head.bias.fill_(0.75)
    assert critic.values(pack.pack, pack.token).tolist() == [0.75] * len(pack)


def test_a_fresh_critic_learns_its_head_first(policy):
    """The weights of a zero head get a gradient, the backbone below it none yet."""
    critic = Critic.from_pretrained(policy)
    loss_of(critic, state_pack()).backward()
    assert with_gradient(critic) == {"value_head.weight", "value_head.bias"}


def test_values_are_at_least_float32(policy):
    critic = Critic.from_pretrained(policy, dtype=torch.bfloat16)
    assert critic.value_head.weight.dtype == torch.float32
    with torch.no_grad():
        critic.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
        pack = state_pack()
        values = critic.values(pack.pack, pack.token)
        assert values.dtype == torch.float32
        exact = Critic.from_pretrained(policy)
        exact.value_head.load_state_dict(critic.value_head.state_dict())
        expected = exact.values(pack.pack, pack.token)
        assert torch.allclose(values, expected, atol=0.3)
        assert not torch.equal(values, values.bfloat16().float())  # the head computes in its own precision


# ---- a backbone of its own ----


@pytest.mark.parametrize(("which", "tied"), [("policy", True), ("untied", False)])
def test_its_own_backbone_is_trained_whole_but_for_the_unused_output_layer(which, tied, request):
    critic = Critic.from_pretrained(request.getfixturevalue(which))
    trained = {id(p) for p in critic.trained()}
    names = {name for name, p in critic.named_parameters() if id(p) not in trained}
    assert names == (set() if tied else {"body.model.lm_head.weight"})
    assert len(trained) == len(list(critic.trained()))
    with torch.no_grad():
        critic.value_head.weight.fill_(0.1)
    loss_of(critic, state_pack()).backward()
    assert all(p.grad is not None for p in critic.trained())
    assert critic.training


def test_its_own_backbone_begins_as_the_actor_and_is_no_part_of_it(policy):
    actor, critic = Actor.from_pretrained(policy), Critic.from_pretrained(policy)
    for name, p in actor.named_parameters():
        mine = critic.body.get_parameter(name)
        assert torch.equal(mine, p)
        assert mine.data_ptr() != p.data_ptr()
    with torch.no_grad():
        critic.value_head.weight.fill_(0.1)
    loss_of(critic, state_pack()).backward()
    assert with_gradient(actor) == set()


def test_an_adapter_of_its_own_leaves_its_backbone_alone(policy):
    critic = Critic.from_pretrained(policy, lora=LORA)
    names = {name for name, p in critic.named_parameters() if p.requires_grad}
    assert {name for name in names if ".lora_" not in name} == {"value_head.weight", "value_head.bias"}
    assert {id(p) for p in critic.trained()} == {id(critic.get_parameter(name)) for name in names}
    assert critic.adapter is None


# ---- a second adapter on the actor's base ----


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_each_gets_its_own_gradients(policy, checkpointing):
    actor, critic = pair(policy, checkpointing=checkpointing)
    pack, states = tree_pack(), state_pack()
    with critic.active():
        loss_of(critic, states).backward()
    adapters = {name for name, p in actor.named_parameters() if ".critic." in name}
    assert with_gradient(actor) == adapters
    assert with_gradient(critic) == {"value_head.weight", "value_head.bias"}
    actor.zero_grad()
    critic.zero_grad()
    policy_loss(pack, *actor.logprobs(pack), LossConfig(entropy_coef=0.1, importance_cap=None))[0].backward()
    assert with_gradient(actor) == {name.replace(".critic.", ".default.") for name in adapters}
    assert with_gradient(critic) == set()


def test_checkpointing_does_not_change_the_critics_gradients(policy):
    found = []
    for checkpointing in (False, True):
        _, critic = pair(policy, checkpointing=checkpointing)
        with critic.active():
            loss_of(critic, state_pack()).backward()
        found.append([p.grad for p in critic.trained()])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-7)


def test_the_actor_does_not_notice_that_the_critic_learns(policy):
    actor, critic = pair(policy)
    pack, states = tree_pack(), state_pack()
    before = actor.logprobs(pack)[0].detach()
    weights = {name: value.clone() for name, value in actor.named_weights()}
    optimizer = torch.optim.AdamW(critic.trained(), lr=1e-3)
    losses = []
    for _ in range(3):
        with critic.active():
            loss = loss_of(critic, states)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert torch.equal(actor.logprobs(pack)[0].detach(), before)
    assert all(torch.equal(value, weights[name]) for name, value in actor.named_weights())


def test_the_critic_does_not_notice_that_the_actor_learns(policy):
    actor, critic = pair(policy)
    states = state_pack()
    before = critic.values(states.pack, states.token).detach()
    assert before.any()
    stir_default = [p for name, p in actor.named_parameters() if ".default." in name]
    with torch.no_grad():
        for p in stir_default:
            p += 0.1
    assert torch.equal(critic.values(states.pack, states.token).detach(), before)


def test_what_each_optimizer_trains_is_apart_and_is_all_there_is(policy):
    actor = Actor.from_pretrained(policy, lora=LORA)
    alone = [id(p) for p in actor.trained()]
    critic = Critic.on_actor(actor, LORA)
    assert [id(p) for p in actor.trained()] == alone
    mine = [id(p) for p in critic.trained()]
    assert len(set(mine)) == len(mine) == len(alone) + 2  # as many adapters, weight and bias of the head
    assert not set(mine) & set(alone)
    every = {id(p) for module in (actor, critic) for p in module.parameters() if p.requires_grad}
    assert every == set(mine) | set(alone)


def test_the_critics_weights_are_stored_once(policy):
    actor, critic = pair(policy)
    holder = torch.nn.Module()
    holder.actor, holder.critic = actor, critic
    names = list(holder.state_dict())
    assert [name for name in names if name.startswith("critic.")] == [
        "critic.value_head.weight",
        "critic.value_head.bias",
    ]
    assert sum(".critic." in name for name in names) == sum(".default." in name for name in names) > 0
    assert not [name for name in names if ".body." in name]


@pytest.mark.parametrize(
    "critic_lora", [LORA, {"r": 3, "target_modules": "all-linear"}, {"target_modules": ["up_proj"]}], ids=str
)
@pytest.mark.parametrize("actor_lora", [LORA, LORA | {"target_modules": ["q_proj"]}], ids=["all", "q_proj"])
def test_sampler_and_export_get_the_actor_alone(policy, tmp_path, actor_lora, critic_lora):
    """Wherever the two adapters lie."""
    actor = stir(Actor.from_pretrained(policy, lora=actor_lora))
    alone = {name: value.clone() for name, value in actor.named_weights()}
    critic = Critic.on_actor(actor, critic_lora)
    with torch.no_grad():
        for p in critic.trained():
            p += 0.1
    found = dict(actor.named_weights())
    assert found.keys() == alone.keys()
    assert all(torch.equal(value, alone[name]) for name, value in found.items())
    assert_same_policy(found, policy, actor)
    actor.save_pretrained(tmp_path)
    again = Actor.from_pretrained(tmp_path)
    assert torch.allclose(actor.logprobs(tree_pack())[0], again.logprobs(tree_pack())[0], atol=1e-5)


@torch.no_grad()
def test_the_reference_is_the_base_without_either_adapter(policy):
    actor, _ = pair(policy)
    with actor.disable_adapter():
        reference = actor.logprobs(tree_pack())[0]
    assert torch.allclose(reference, Actor.from_pretrained(policy).logprobs(tree_pack())[0], atol=1e-6)


def test_the_critic_learns_after_the_reference_was_asked_too(policy):
    """peft freezes all adapters while they are disabled."""
    actor, critic = pair(policy)
    with torch.no_grad(), actor.disable_adapter():
        actor.logprobs(tree_pack())
    with critic.active():
        loss_of(critic, state_pack()).backward()
    assert all(p.grad is not None for p in critic.trained())
    policy_loss(tree_pack(), *actor.logprobs(tree_pack()), LossConfig(importance_cap=None))[0].backward()
    assert all(p.grad is not None for p in actor.trained())


def test_the_actors_adapter_is_back_after_an_error_in_the_critic(policy):
    actor, critic = pair(policy)
    before = actor.logprobs(tree_pack())[0].detach()
    with pytest.raises(RuntimeError, match="in between"), critic.active():
        raise RuntimeError("in between")
    assert torch.equal(actor.logprobs(tree_pack())[0].detach(), before)
    assert all(p.requires_grad for p in [*actor.trained(), *critic.trained()])


# ---- settings ----


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mini_batches": 0}, r"model\.critic\.mini_batches must be at least 1, got 0"),
        ({"passes": 0}, r"model\.critic\.passes must be at least 1"),
        ({"max_tokens_per_pack": 0}, r"model\.critic\.max_tokens_per_pack must be at least 1"),
        ({"backbone": "shared", "policy": "x"}, r"model\.critic\.policy goes with backbone 'own'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CriticConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs an actor with LoRA: set model.actor.lora"),
        ({"lora": {"rank": 3}}, r"lora takes the arguments of peft\.LoraConfig: .*rank"),
        ({"lora": {"modules_to_save": ["lm_head"]}}, "use_dora and modules_to_save are not supported"),
        ({"lora": {"target_modules": ["lm_head"]}}, "the output layer must be a plain linear layer"),
        ({"lora": {"lora_dropout": 0.1}}, "dropout"),
    ],
)
def test_a_shared_critic_that_cannot_be_built_is_named(policy, settings, message):
    actor = Actor.from_pretrained(policy, lora=LORA if settings else None)
    with pytest.raises(SettingsError, match=message):
        build_critic(CriticConfig(backbone="shared", **settings), actor, str(policy), ActorConfig())


def test_an_own_critic_that_cannot_be_loaded_is_named(policy, tmp_path):
    actor = Actor.from_pretrained(policy)
    with pytest.raises(SettingsError, match=r"model\.critic\.policy: .* has no config\.json"):
        build_critic(CriticConfig(policy=str(tmp_path)), actor, str(policy), ActorConfig())


def test_the_critic_takes_its_settings_or_the_actors(policy, untied):
    actor = Actor.from_pretrained(policy, lora=LORA)
    shared = build_critic(CriticConfig(backbone="shared"), actor, str(policy), ActorConfig(lora={"r": 5}))
    assert {p.shape[0] for name, p in shared.body.named_parameters() if ".lora_A.critic." in name} == {5}
    own = build_critic(CriticConfig(policy=str(untied), dtype="bfloat16"), actor, str(policy), ActorConfig(lora=LORA))
    assert own.body.causal_lm.config.model_type == "llama"
    assert own.body.model.dtype == torch.bfloat16
    assert not own.body.has_adapter  # lora null trains all of its own weights
    same = build_critic(CriticConfig(), actor, str(policy), ActorConfig(lora=LORA))
    assert same.body.causal_lm.config.model_type == "qwen3"


def test_losses_of_clipped_logits_are_taken():
    assert CriticConfig(loss=ValueLossConfig("bce", clip=0.2)).loss.clip == 0.2
