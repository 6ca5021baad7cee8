"""TransformersSampler: prefixes are computed once, and reuse never changes what is sampled."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from lit_treerl.sampling.base import Completion, Request, SamplingParams
from lit_treerl.sampling.transformers import TransformersSampler
from tiny_models import save_tiny_policy

BLOCK = 8


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"), seed=5)


@pytest.fixture(scope="module")
def started(policy):
    def build(**settings) -> TransformersSampler:
        sampler = TransformersSampler(**settings)
        sampler.start(policy, AutoTokenizer.from_pretrained(policy), max_context=256)
        return sampler

    return build


def letters(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, 97) for _ in range(count)]


def test_the_shortest_prompts_are_sampled_first(started):
    sampler, draw = started(max_batch=1, refill=0.01), random.Random(0)
    for i, size in enumerate((30, 5, 20, 5)):  # of one length the earlier comes first
        sampler.submit(Request(i, letters(draw, size), SamplingParams(2), seed=i))
    order = []
    while finished := sampler.poll():
        order += [completion.id for completion in finished]
    assert order == [1, 3, 2, 0]


def test_the_lowest_priority_number_is_sampled_first(started):
    sampler, draw = started(max_batch=1, refill=0.01), random.Random(0)
    for i, (size, priority) in enumerate(((5, 2), (30, -1), (5, 0), (20, -1), (5, 0))):
        sampler.submit(Request(i, letters(draw, size), SamplingParams(2), seed=i, priority=priority))
    order = []
    while finished := sampler.poll():
        order += [completion.id for completion in finished]
    assert order == [3, 1, 2, 4, 0]


def test_the_prefix_cache_keeps_a_gibibyte_when_not_told_otherwise(started, monkeypatch):
    """2 layers of 2 key heads of 32 numbers of 4 bytes, keys and values: 1,024 bytes a token."""
    prompt = letters(random.Random(0), 33)

    def cached(**settings) -> int:
        sampler = started(**settings)
        for i in range(2):
            sampler.submit(Request(i, prompt, SamplingParams(2), seed=i))
            (done,) = sampler.poll()
        return done.cached_tokens

    assert cached() == 32
    monkeypatch.setattr("lit_treerl.sampling.kv_cache.CACHE_BYTES", 1024 * 16)
    assert cached() == 32  # not less than four contexts
    monkeypatch.setattr("lit_treerl.sampling.kv_cache.CACHE_CONTEXTS", 0)
    assert cached() == 16
    assert cached(cache_tokens=24) == 24


def grow(sampler: TransformersSampler, seed: int) -> dict[int, tuple[list[int], Completion]]:
    """Grow random trees of turns through submit and poll; who forks whom depends only on ids, never on order."""
    draw = random.Random(seed)
    roots = [letters(draw, draw.randint(1, 40)) for _ in range(3)]
    pending = {i: (roots[i % 3], 0) for i in range(9)}  # id: prompt, depth
    for i, (prompt, _) in pending.items():
        sampler.submit(Request(i, prompt, SamplingParams(3 + i, stop=("e", "th")), seed=i))
    done = {}
    while finished := sampler.poll():
        for completion in finished:
            prompt, depth = pending.pop(completion.id)
            done[completion.id] = (prompt, completion)
            fork = random.Random(completion.id)
            for child in range(fork.randint(1, 2) if depth < 2 else 0):
                key = completion.id * 10 + 100 + child
                longer = prompt + completion.ids + letters(fork, fork.randint(0, 20))
                params = SamplingParams(fork.randint(1, 14), fork.choice([0.0, 0.8, 1.0]), stop=("e",))
                pending[key] = (longer, depth + 1)
                sampler.submit(Request(key, longer, params, seed=key))
    return done


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1000),
    cache_tokens=st.sampled_from([0, 8, 24, 100, 400, 65536]),
    max_batch=st.sampled_from([1, 2, 5, 256]),
    refill=st.sampled_from([0.0, 0.25, 1.0]),
    prefill_tokens=st.sampled_from([1, 60, 8192]),
)
def test_prefix_reuse_changes_nothing(started, seed, cache_tokens, max_batch, refill, prefill_tokens):
    plain = grow(started(prefix_cache=False), seed)
    sampler = started(cache_tokens=cache_tokens, max_batch=max_batch, refill=refill, prefill_tokens=prefill_tokens)
    reused = grow(sampler, seed)
    assert reused.keys() == plain.keys()
    for key, (prompt, completion) in plain.items():
        assert reused[key][0] == prompt
        assert reused[key][1].ids == completion.ids
        assert reused[key][1].finish_reason == completion.finish_reason
        assert reused[key][1].logprobs == pytest.approx(completion.logprobs, abs=1e-5)
        assert completion.cached_tokens == 0
        assert reused[key][1].cached_tokens < len(prompt)
    cached = sampler.reset_counters().cached_tokens
    assert cached == sum(c.cached_tokens for _, c in reused.values())
    if cache_tokens == 0:
        assert cached == 0
    elif cache_tokens >= 400:
        assert cached > 0


def test_one_task_is_computed_once_for_all_its_chains(started):
    sampler = started()
    prompt = letters(random.Random(0), 50)
    other = letters(random.Random(1), 30)
    for i in range(8):
        sampler.submit(Request(i, prompt if i % 2 else other, SamplingParams(6), seed=i))
    done = {}
    while batch := sampler.poll():
        done |= {c.id: c.cached_tokens for c in batch}
    assert [done[i] for i in range(8)] == [0, 0, 24, 48, 24, 48, 24, 48]


def test_a_child_turn_and_its_siblings_start_from_whole_blocks_of_the_parent(started):
    sampler = started()
    prompt = letters(random.Random(0), 30)
    sampler.submit(Request(0, prompt, SamplingParams(21), seed=0))
    (parent,) = sampler.poll()
    computed = 30 + len(parent.ids) - 1  # the last token was sampled, never fed
    observation = letters(random.Random(2), 12)
    for i in (1, 2, 3):
        sampler.submit(Request(i, prompt + parent.ids + observation, SamplingParams(4), seed=i))
    done = {}
    while batch := sampler.poll():
        done |= {c.id: c.cached_tokens for c in batch}
    assert done[1] == computed // BLOCK * BLOCK
    assert done[2] == done[3] == (30 + len(parent.ids) + 12 - 1) // BLOCK * BLOCK


def test_poll_returns_a_share_and_the_others_go_on(started):
    sampler = started(refill=0.5)
    prompts = [letters(random.Random(i), 10) for i in range(4)]
    for i, prompt in enumerate(prompts):
        sampler.submit(Request(i, prompt, SamplingParams(2 + 6 * i, temperature=0.0), seed=i))
    first = [c.id for c in sampler.poll()]
    assert first == [0, 1]
    sampler.submit(Request(9, prompts[0], SamplingParams(1), seed=9))
    assert [c.id for c in sampler.poll()] == [9, 2]
    assert [c.id for c in sampler.poll()] == [3]
    assert sampler.poll() == []


def test_a_full_batch_is_not_interrupted_and_one_with_room_is(started):
    sampler, draw, asked = started(max_batch=2, refill=1.0), random.Random(0), []

    def interrupt() -> bool:
        asked.append(len(asked))
        return True

    for i, tokens in enumerate((2, 9, 3)):
        sampler.submit(Request(i, letters(draw, 5), SamplingParams(tokens, 0.0), seed=i))
    assert [c.id for c in sampler.poll(interrupt)] == [0, 2]  # one queued request takes the place of the first
    assert asked == [0]
    assert sampler.poll(interrupt) == []
    assert [c.id for c in sampler.poll()] == [1]


def test_bfloat16_is_close_to_float32(started, policy):
    prompt = letters(random.Random(0), 40)
    sampler = started(dtype="bfloat16")
    sampler.submit(Request(0, prompt, SamplingParams(8), seed=0))
    (completion,) = sampler.poll()
    model = AutoModelForCausalLM.from_pretrained(policy)
    with torch.no_grad():
        logprobs = model(torch.tensor([prompt + completion.ids])).logits[0, 39:-1].log_softmax(-1)
    exact = logprobs.gather(-1, torch.tensor(completion.ids)[:, None])[:, 0].tolist()
    assert completion.logprobs == pytest.approx(exact, abs=0.3)
    assert completion.logprobs != pytest.approx(exact, abs=1e-4)


def test_start_builds_once_and_close_ends_it(started, policy):
    sampler = started()
    sampler.start(policy / "missing", None, max_context=1)
    sampler.close()
    with pytest.raises(RuntimeError, match="call start"):
        sampler.submit(Request(0, [5], SamplingParams(1), seed=0))


def test_sliding_window_models_are_refused(tmp_path):
    import json

    policy = save_tiny_policy(tmp_path / "window", kind="qwen2")
    config = json.loads((policy / "config.json").read_text())
    config |= {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": True, "sliding_window": 16}
    (policy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="sliding_attention are not supported"):
        TransformersSampler().start(policy, AutoTokenizer.from_pretrained(policy), max_context=64)


@pytest.mark.parametrize("wrong", [{"refill": 1.5}, {"max_batch": 0}, {"cache_tokens": -1}, {"prefill_tokens": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TransformersSampler(**wrong)
