import random
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from lit_treerl.algorithms.aggregation import leaf_weights
from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.modeling.actor import Actor
from lit_treerl.modeling.attention import attention_kernel
from lit_treerl.modeling.critic import Critic
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.packing import build_packs
from lit_treerl.modeling.tree_blocks import Block, TreeBlocks, blocks
from lit_treerl.modeling.varlen_attention import fits_varlen
from tiny_models import save_tiny_policy
from tree_cases import group, random_tree

LORA = {"r": 4, "init_lora_weights": False}


def random_pack(seed: int, context: str = "growing", trees: int = 4, vocab: int = 300) -> Pack:
    """Several trees of several prompts, two trees each."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(vocab) for _ in range(rng.randrange(1, 9))] for _ in range(trees // 2)]
    members = [
        group(*(random_tree(rng, context=context, index=i, prompt=prompt, vocab=vocab) for i in range(2)))
        for prompt in prompts
    ]
    credits = GRPO()(members)
    (pack,) = build_packs(members, credits, leaf_weights(members, credits), max_tokens=99999)
    return pack


def chain(pack: Pack, token: int) -> list[int]:
    """The token's own context in order, itself last."""
    out = [token]
    while (parent := int(pack.parent[out[-1]])) >= 0:
        out.append(parent)
    return out[::-1]


def test_golden_blocks_run_from_a_fork_to_a_leaf():
    # segment 0 (2 tokens) with children 1 (1 token, itself with children 2 and 3, 1 token each) and 4 (3); then 5 (2)
    segment = torch.tensor([0, 0, 1, 2, 3, 4, 4, 4, 5, 5])
    zero = torch.zeros(10)
    parents = torch.tensor([-1, 0, 1, 1, 0, -1])
    pack = Pack(segment, segment, segment, segment, parents, zero > 0, zero, zero, zero, zero)
    assert blocks(pack) == [
        Block(0, 4, ()),
        Block(4, 5, ((0, 3),)),
        Block(5, 8, ((0, 2),)),
        Block(8, 10, ()),
    ]
    assert [(block.queries, block.keys) for block in blocks(pack)] == [(4, 4), (1, 4), (3, 5), (2, 2)]


@pytest.mark.parametrize("context", ["growing", "window"])
@pytest.mark.parametrize("seed", range(6))
def test_every_token_looks_once_and_at_its_own_context(context, seed, monkeypatch):
    monkeypatch.setattr("lit_treerl.modeling.tree_blocks.SLACK", (0, 60, 10**6)[seed % 3])
    pack = random_pack(seed, context)
    tree = TreeBlocks.of(pack)
    looking = []
    for batch in tree.batches:
        rows, most = batch.query.shape
        real = range(rows * most) if batch.real is None else batch.real.tolist()
        causal = torch.arange(batch.key.shape[1]) <= torch.arange(most)[:, None]
        mask = causal.expand(rows, -1, -1) if batch.mask is None else batch.mask[:, 0]
        for row, column in (divmod(place, most) for place in real):
            token = int(batch.query[row, column])
            looking.append(token)
            assert batch.key[row][mask[row, column]].tolist() == chain(pack, token)
    assert sorted(looking) == list(range(len(pack)))
    assert [looking[place] for place in tree.order.tolist()] == list(range(len(pack)))


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    return {kind: save_tiny_policy(folder / kind, kind) for kind in ("qwen3", "qwen2", "llama")}


def outcome(actor: Actor, pack: Pack) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    logprobs, entropies = actor.logprobs(pack, 0.8)
    (logprobs * pack.positive + entropies * pack.weight).sum().backward()
    grads = {name: p.grad.clone() for name, p in actor.named_parameters() if p.grad is not None}
    return logprobs.detach(), grads


@pytest.mark.parametrize("context", ["growing", "window"])
@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}, {"lora": LORA}])
def test_logprobs_and_gradients_equal_the_dense_reference(policies, kind, context, options):
    pack = random_pack(3, context, trees=6)
    found = []
    for attention in ("tree", "dense"):
        torch.manual_seed(0)
        found.append(outcome(Actor.from_pretrained(policies[kind], attention=attention, **options), pack))
    (logprobs, grads), (expected, expected_grads) = found
    assert torch.allclose(logprobs, expected, rtol=0, atol=1e-5)
    assert grads.keys() == expected_grads.keys()
    largest = max(float(grad.abs().max()) for grad in expected_grads.values())
    for name, grad in grads.items():
        assert float((grad - expected_grads[name]).abs().max()) < 1e-5 * max(1, largest), name


def test_values_equal_the_dense_reference_with_an_adapter_on_the_actors_base_too(policies):
    pack, token = random_pack(5), torch.arange(0, 12, 3)
    for shared in (False, True):
        found = []
        for attention in ("tree", "dense"):
            torch.manual_seed(1)
            if shared:
                actor = Actor.from_pretrained(policies["qwen3"], attention=attention, lora=LORA)
                critic = Critic.on_actor(actor, LORA)
            else:
                critic = Critic.from_pretrained(policies["qwen3"], attention=attention)
            torch.nn.init.constant_(critic.value_head.weight, 0.1)
            found.append(critic.values(pack, token))
        assert float(found[0].detach().std()) > 1e-3
        assert torch.allclose(*found, rtol=0, atol=1e-5)


def test_bfloat16_stays_as_close_to_float32_as_the_dense_reference(policies):
    pack = random_pack(4)
    exact = Actor.from_pretrained(policies["qwen3"]).logprobs(pack)[0]
    gaps = []
    for attention in ("tree", "dense"):
        actor = Actor.from_pretrained(policies["qwen3"], dtype=torch.bfloat16, attention=attention)
        gaps.append(float((actor.logprobs(pack)[0] - exact).detach().abs().max()))
    assert 0 < gaps[0] < 1.5 * gaps[1]


def test_no_unique_token_is_computed_twice(policies):
    """The layers are given as many tokens as there are distinct contexts in the trees."""
    pack = random_pack(2, trees=6)
    ids = pack.ids.tolist()
    assert len({tuple(ids[i] for i in chain(pack, token)) for token in range(len(pack))}) == len(pack)
    actor = Actor.from_pretrained(policies["qwen3"])
    seen: list[int] = []
    for name, module in actor.named_modules():
        if name.endswith(("mlp", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")):
            module.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:-1].numel()))
    actor.logprobs(pack)
    assert seen == [len(pack)] * 8  # 4 parts of 2 layers


def test_an_ordinary_forward_is_causal_and_a_padding_mask_is_refused(policies):
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([[5, 6, 7, 8]])
    plain = AutoModelForCausalLM.from_pretrained(policies["qwen3"])
    model = AutoModelForCausalLM.from_pretrained(policies["qwen3"], attn_implementation=attention_kernel("tree"))
    with torch.no_grad():
        assert torch.allclose(model(input_ids=ids).logits, plain(input_ids=ids).logits, atol=1e-5)
        with pytest.raises(ValueError, match="takes no attention mask"):
            model(input_ids=ids, attention_mask=torch.tensor([[0, 1, 1, 1]]))
        cache = model(input_ids=ids, use_cache=True).past_key_values
        with pytest.raises(ValueError, match="takes no key/value cache"):
            model(input_ids=ids[:, :1], past_key_values=cache)


def test_attention_is_computed_in_the_precision_of_autocast(policies, monkeypatch):
    seen = []
    monkeypatch.setattr("lit_treerl.modeling.tree_attention.fits_varlen", lambda query: bool(seen.append(query.dtype)))
    actor = Actor.from_pretrained(policies["qwen3"])
    with torch.autocast("cpu", torch.bfloat16):
        actor.logprobs(random_pack(1))
    assert seen == [torch.bfloat16] * 2


def test_the_flash_kernel_is_for_half_precision_on_a_recent_gpu(monkeypatch):
    def fits(device="cuda", dtype=torch.bfloat16, size=64, capability=(9, 0)):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability)
        query = SimpleNamespace(device=torch.device(device), dtype=dtype, shape=(4, 2, size))
        return fits_varlen(cast(torch.Tensor, query))

    assert fits()
    assert fits(dtype=torch.float16, size=128, capability=(8, 0))
    assert not fits(device="cpu")
    assert not fits(dtype=torch.float32)
    assert not fits(size=60)
    assert not fits(capability=(7, 5))


def plain_varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa):
    """What PyTorch's documentation says of ``varlen_attn``, sequence by sequence; causality aligned to the ends."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert window_size == (-1, 0)
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert (max_q, max_k) == (int(cu_seq_q.diff().max()), int(cu_seq_k.diff().max()))
    out = []
    for q0, q1, k0, k1 in zip(cu_seq_q[:-1], cu_seq_q[1:], cu_seq_k[:-1], cu_seq_k[1:], strict=True):
        q, k, v = (x.transpose(0, 1) for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)
        out.append(attended.transpose(0, 1))
    return torch.cat(out)


@pytest.mark.parametrize("context", ["growing", "window"])
def test_what_the_flash_kernel_is_given_makes_the_same_of_a_pack(policies, context, monkeypatch):
    """The kernel itself needs a GPU; in its place stands a plain loop."""
    pack = random_pack(6, context, trees=6)
    actor = Actor.from_pretrained(policies["qwen3"])
    expected, expected_grads = outcome(actor, pack)
    actor.zero_grad()
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", plain_varlen)
    monkeypatch.setattr("lit_treerl.modeling.tree_attention.fits_varlen", lambda query: True)
    found, grads = outcome(actor, pack)
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
    largest = max(float(grad.abs().max()) for grad in expected_grads.values())
    for name, grad in expected_grads.items():
        assert float((grads[name] - grad).abs().max()) < 1e-5 * max(1, largest), name
