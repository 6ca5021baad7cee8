"""The small parts under the samplers, against plain slow versions."""

from __future__ import annotations

import math
import random
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_treerl.sampling import auto, kv_cache
from lit_treerl.sampling.checks import eos_token_ids
from lit_treerl.sampling.decode import sample_tokens
from lit_treerl.sampling.kv_cache import PrefixStore, RowCache, default_cache_tokens
from lit_treerl.sampling.prefix_index import BlockIndex
from lit_treerl.sampling.stop_strings import StopStrings
from lit_treerl.sampling.transformers import TransformersSampler
from lit_treerl.sampling.vllm import VLLMSampler
from lit_treerl.sampling.weights import WeightNames
from tiny_models import save_tiny_policy, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def test_even_uniforms_give_each_token_its_probability():
    logits = torch.tensor([1.0, -2.0, 0.5, -math.inf, 3.0])
    count = 10_000
    uniforms = [(i + 0.5) / count for i in range(count)]
    for temperature in (1.0, 0.5):
        tokens, logprobs = sample_tokens(logits.expand(count, -1), [temperature] * count, uniforms)
        expected = (logits.double() / temperature).softmax(-1)
        for token in range(5):
            assert tokens.count(token) == pytest.approx(expected[token].item() * count, abs=1)
        assert logprobs == pytest.approx(expected.log()[tokens].tolist(), abs=1e-6)


def test_rows_are_sampled_apart_and_zero_temperature_is_greedy():
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    tokens, logprobs = sample_tokens(logits, [0.0, 2.0, 1.0], [0.0, 0.0, 0.999])
    assert tokens == [1, 0, 1]
    plain = -math.log(1 + math.exp(-1))
    assert logprobs == pytest.approx([plain, -math.log(1 + math.exp(0.5)), plain], abs=1e-6)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    ids=st.lists(st.integers(0, 319), max_size=40),
    stop=st.lists(
        st.sampled_from(["e", "he ", "</s>", "the search", "é", "<|im_start|>", "|><", "ab", "\n\n", "  ", "é!"]),
        min_size=1,
        max_size=3,
    ),
)
def test_stop_strings_agree_with_decoding_everything(ids, stop):
    finder = StopStrings(TOKENIZER, 320)
    for text in (stop[0], "x".join(stop)):  # make hits common
        ids = ids + TOKENIZER.encode(text)
    for end in range(1, len(ids) + 1):
        whole = TOKENIZER.decode(ids[:end], skip_special_tokens=False)
        expected = any(s in whole for s in stop)
        assert finder.completed(tuple(stop), ids[:end]) == expected
        if expected:
            break


def test_stop_strings_see_no_match_without_stops():
    assert not StopStrings(TOKENIZER, 320).completed((), [5, 6])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), capacity=st.integers(0, 12), block=st.integers(1, 3))
def test_block_index_never_mixes_prefixes(seed, capacity, block):
    draw = random.Random(seed)
    index = BlockIndex(capacity, block)
    content: dict[int, tuple[int, ...]] = {}  # what a pool would hold: by slot, the whole prefix up to the block's end
    for _ in range(60):
        ids = [draw.randrange(2) for _ in range(draw.randrange(12))]
        if draw.random() < 0.6:
            for number, slot in index.insert(ids):
                assert 0 <= slot < capacity
                content[slot] = tuple(ids[: (number + 1) * block])
        match = index.match(ids)
        for number, slot in enumerate(match.slots):
            assert content[slot] == tuple(ids[: (number + 1) * block])
        assert (match.missing is None) == (len(match.slots) == len(ids) // block)
        assert len(index) <= capacity


def test_block_index_keeps_what_was_used_last_and_loses_ends_before_beginnings():
    index = BlockIndex(3, block=2)
    assert index.insert([1, 2, 3, 4, 9]) == [(0, 0), (1, 1)]
    assert index.insert([5, 6]) == [(0, 2)]
    index.match([1, 2])
    index.insert([7, 8])  # the oldest is the end [3, 4]
    assert index.match([1, 2, 3, 4]).slots == [0]
    assert index.match([7, 8]).slots == [1]
    assert index.match([5, 6]).slots == [2]
    assert index.insert([0, 0, 0, 0, 0, 0, 0, 0]) == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]  # 4 blocks do not fit: its beginning stays
    assert index.match([0, 0, 0, 0, 0, 0, 0, 0]).slots == [0, 1, 2]
    index.clear()
    assert index.match([7, 8]).slots == []


def key_of(ids: list[int], number: int) -> float:
    """What stands in the cache for a block: a number that only this prefix has."""
    return float(sum((token + 1) * 7**i for i, token in enumerate(ids[: (number + 1) * 2])))


def small_rows() -> RowCache:
    config = SimpleNamespace(num_key_value_heads=1, head_dim=1, num_hidden_layers=1)
    rows = RowCache(config, torch.float64, torch.device("cpu"), block=2, max_rows=3, max_length=8)  # type: ignore[arg-type]
    rows.reserve(3, 8)
    return rows


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    capacity=st.integers(0, 12),
    pool_bytes=st.sampled_from([1, 64, 96, 10**6]),
    copy_bytes=st.sampled_from([1, 64, 10**6]),
)
def test_prefixes_survive_growth_and_eviction_within_the_memory_allowed(seed, capacity, pool_bytes, copy_bytes):
    draw = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_cache, "POOL_BYTES", pool_bytes)  # a block here has 2 tokens of 16 bytes
        patch.setattr(kv_cache, "COPY_BYTES", copy_bytes)
        store = PrefixStore(rows := small_rows(), 2 * capacity + 1)
    for _ in range(30):
        prompts = [[draw.randrange(2) for _ in range(draw.randrange(1, 9))] for _ in range(3)]
        for row, ids in enumerate(prompts):
            for number in range(len(ids) // 2):
                rows.blocks()[:, row, :, number] = key_of(ids, number)
        store.save(list(enumerate(prompts)))
        assert store.memory_bytes <= 32 * capacity
        rows.data[:] = -1.0
        slots = [store.match(ids).slots for ids in prompts]
        store.load(slots, 0)
        for row, (ids, known) in enumerate(zip(prompts, slots, strict=True)):
            assert rows.data[0, row, 0, ::2, 0].tolist() == [
                key_of(ids, number) if number < len(known) else -1.0 for number in range(4)
            ]
    store.clear()
    assert store.memory_bytes == 0
    assert store.match([0, 0, 0, 0]).slots == []


def test_a_growing_store_keeps_the_memory_that_it_has(monkeypatch):
    monkeypatch.setattr(kv_cache, "POOL_BYTES", 64)  # two blocks
    store = PrefixStore(small_rows(), 2 * 5)
    held = []
    for first in range(6):
        store.save([(0, [first, 0])])
        held.append(store.memory_bytes // 32)
    assert held == [2, 2, 4, 4, 5, 5]  # by a pool at a time, up to its capacity


def test_a_store_keeps_a_gibibyte_but_at_least_a_few_contexts():
    assert default_cache_tokens(token_bytes=1024, max_context=4096) == 2**20
    assert default_cache_tokens(token_bytes=294_912, max_context=4096) == 4 * 4096  # 8B in float32
    assert default_cache_tokens(token_bytes=2**31, max_context=7) == 28


def test_tied_weights_go_together(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    names = WeightNames.of_config(AutoConfig.from_pretrained(save_tiny_policy(tmp_path, tie=True)))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    state = model.state_dict()
    assert "lm_head.weight" in state
    for weights in (model.named_parameters(), state.items(), reversed(list(state.items()))):
        out = dict(names.checked(weights))
        assert out.keys() == state.keys()
        assert torch.equal(out["lm_head.weight"], out["model.embed_tokens.weight"])


def test_eos_ids_come_from_generation_config_and_tokenizer():
    assert eos_token_ids([2, 7], 5) == {2, 5, 7}
    assert eos_token_ids(3, None) == {3}
    assert eos_token_ids(None, None) == frozenset()


def test_auto_takes_vllm_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(auto, "find_spec", lambda name: ModuleSpec(name, None))
    assert isinstance(auto.resolve_sampler("auto"), VLLMSampler)
    monkeypatch.setattr(auto, "find_spec", lambda name: None)
    assert isinstance(auto.resolve_sampler("auto"), TransformersSampler)
    own = TransformersSampler(max_batch=3)
    assert auto.resolve_sampler(own) is own
    with pytest.raises(ValueError, match="'vlm'; give 'auto'"):
        auto.resolve_sampler("vlm")  # type: ignore[arg-type]
