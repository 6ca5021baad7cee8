import json
import random
from pathlib import Path

import pytest
import torch

from lit_treerl.algorithms.aggregation import leaf_weights
from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.algorithms.losses import LossConfig, policy_loss
from lit_treerl.modeling.actor import Actor
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.packing import build_packs, supervised_packs
from tiny_models import VOCAB_SIZE, save_tiny_policy
from tree_cases import group, random_tree

LORA = {"r": 2, "lora_alpha": 4}


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def untied(tmp_path_factory) -> Path:
    return save_tiny_policy(tmp_path_factory.mktemp("untied"), kind="llama", tie=False)


def tree_pack(seed: int = 0) -> Pack:
    rng = random.Random(seed)
    members = [group(*(random_tree(rng, prompt=[5, 6, 7], index=i, vocab=VOCAB_SIZE) for i in range(2)))]
    credits = GRPO()(members)
    (pack,) = build_packs(members, credits, leaf_weights(members, credits), max_tokens=9999)
    return pack


def plain_logprobs(model, ids: list[int]) -> torch.Tensor:
    """Log-prob of every token but the first, by an ordinary forward."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None]).squeeze(-1)


def stir(actor: Actor) -> Actor:
    """Move the trainable weights, LoRA's zero-initialised half included."""
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in actor.parameters():
            if p.requires_grad:
                p += 0.05 * torch.randn(p.shape, generator=g)
    return actor


def test_each_token_is_predicted_from_its_parent_and_only_wanted_tokens_are_computed(policy):
    from transformers import AutoModelForCausalLM

    actor, plain = Actor.from_pretrained(policy), AutoModelForCausalLM.from_pretrained(policy)
    pack = tree_pack()
    logprobs, entropy = actor.logprobs(pack)
    for token in pack.action.nonzero().squeeze(-1).tolist():
        walk = [token]
        while pack.parent[walk[-1]] >= 0:
            walk.append(int(pack.parent[walk[-1]]))
        expected = plain_logprobs(plain, pack.ids[walk[::-1]].tolist())[-1]
        assert float(logprobs[token].detach()) == pytest.approx(float(expected), abs=1e-5)
    assert not logprobs[~pack.action].any()
    assert not entropy[~pack.action].any()
    assert bool((entropy[pack.action] > 0).all())
    assert logprobs.dtype == torch.float32
    assert actor.training


def test_supervised_packs_also_score_weighted_observations(policy):
    actor = Actor.from_pretrained(policy)
    (pack,) = supervised_packs([([1, 2], [([3, 4], [5, 6])])], 100, observation_weight=0.3)
    expected = plain_logprobs(actor.causal_lm, [1, 2, 3, 4, 5, 6])
    found = actor.logprobs(pack)[0].detach()
    assert found[:2].tolist() == [0, 0]
    assert found[2:].tolist() == pytest.approx(expected[1:].tolist(), abs=1e-5)


def test_chunks_checkpointing_and_temperature_change_what_they_should(policy):
    pack = tree_pack()
    results = []
    for options in ({}, {"logprob_chunk": 3}, {"gradient_checkpointing": True}):
        actor = Actor.from_pretrained(policy, **options)
        loss, _ = policy_loss(pack, *actor.logprobs(pack), LossConfig(entropy_coef=0.1, importance_cap=None))
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in actor.parameters())])
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            assert torch.allclose(x, y, atol=1e-6)
    flat = Actor.from_pretrained(policy).logprobs(pack, temperature=1e6)[0][pack.action]
    assert torch.allclose(flat, torch.full_like(flat, -torch.tensor(float(VOCAB_SIZE)).log()), atol=1e-4)


def assert_same_policy(weights: dict[str, torch.Tensor], folder: Path, actor: Actor) -> None:
    """``weights`` loaded strictly into a fresh model give the actor's distribution."""
    from transformers import AutoModelForCausalLM

    fresh = AutoModelForCausalLM.from_pretrained(folder)
    assert weights.keys() == fresh.state_dict().keys()
    fresh.load_state_dict(weights)
    pack = tree_pack(1)
    expected, found = actor.logprobs(pack)[0], Actor(fresh).logprobs(pack)[0]
    assert torch.allclose(expected, found, atol=1e-4)


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("which", ["policy", "untied"])
def test_named_weights_carry_the_trained_policy_in_hugging_face_names(which, lora, request):
    folder = request.getfixturevalue(which)
    actor = Actor.from_pretrained(folder, lora=lora)
    before = actor.logprobs(tree_pack(1))[0].detach()
    stir(actor)
    state = {name: tensor.clone() for name, tensor in actor.state_dict().items()}
    weights = dict(actor.named_weights())
    assert not any(tensor.requires_grad for tensor in weights.values())
    assert float((actor.logprobs(tree_pack(1))[0].detach() - before).abs().max()) > 1e-2
    assert_same_policy(weights, folder, actor)
    assert all(torch.equal(tensor, state[name]) for name, tensor in actor.state_dict().items())


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_saved_actor_is_an_ordinary_model_folder(policy, lora, tmp_path):
    actor = stir(Actor.from_pretrained(policy, lora=lora))
    actor.save_pretrained(tmp_path)
    again = Actor.from_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True
    assert torch.allclose(actor.logprobs(tree_pack())[0], again.logprobs(tree_pack())[0], atol=1e-5)


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_saved_actor_can_be_of_another_dtype(policy, lora, tmp_path):
    from transformers import AutoModelForCausalLM

    actor = stir(Actor.from_pretrained(policy, lora=lora))
    actor.save_pretrained(tmp_path, torch.bfloat16)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").state_dict()
    for name, tensor in actor.named_weights():
        assert torch.equal(saved[name], tensor.bfloat16()), name


def test_lora_trains_adapters_alone_and_its_base_is_the_reference(policy):
    actor, base = stir(Actor.from_pretrained(policy, lora=LORA)), Actor.from_pretrained(policy)
    trained = [name for name, p in actor.named_parameters() if p.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)
    pack = tree_pack()
    with torch.no_grad():
        adapted = actor.logprobs(pack)[0]
        with actor.disable_adapter():
            reference = actor.logprobs(pack)[0]
        assert torch.equal(actor.logprobs(pack)[0], adapted)
        assert torch.allclose(reference, base.logprobs(pack)[0], atol=1e-6)
    assert float((adapted - reference).abs().max()) > 1e-2
    with pytest.raises(ValueError, match="no LoRA adapter to disable"):
        base.disable_adapter()


def test_a_path_without_a_model_is_named(tmp_path, policy):
    with pytest.raises(ValueError, match=r"holds no model: it has no config\.json"):
        Actor.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((policy / "config.json").read_text())
    with pytest.raises(ValueError, match="no causal language model could be loaded from"):
        Actor.from_pretrained(tmp_path)


def test_weights_that_are_missing_in_the_folder_are_named_not_made_up(policy, tmp_path):
    from safetensors.torch import load_file, save_file

    (tmp_path / "config.json").write_text((policy / "config.json").read_text())
    weights = load_file(policy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 weights .*model\.layers\.1\.mlp\.up_proj\.weight"):
        Actor.from_pretrained(tmp_path)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"rank": 4}, r"lora takes the arguments of peft\.LoraConfig: .*rank"),
        ({"use_dora": True}, "use_dora and modules_to_save are not supported"),
        ({"target_modules": ["q_proj", "lm_head"]}, "the output layer must be a plain linear layer"),
    ],
)
def test_unsupported_lora_is_named(policy, lora, message):
    with pytest.raises(ValueError, match=message):
        Actor.from_pretrained(policy, lora=lora)


@pytest.mark.parametrize(
    ("name", "value"), [("logits_scaling", 8.0), ("logit_scale", 0.0625), ("final_logit_softcapping", 30.0)]
)
def test_models_that_change_their_logits_are_refused(policy, name, value):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy)
    setattr(model.config, name, value)
    with pytest.raises(ValueError, match=f"this one has {name} {value}"):
        Actor(model)


def test_eager_attention_is_refused(policy):
    from transformers import AutoModelForCausalLM

    with pytest.raises(ValueError, match="loaded with 'eager'"):
        Actor(AutoModelForCausalLM.from_pretrained(policy, attn_implementation="eager"))
