"""New tokens of unlike rows in one forward, against plain causal attention and the plain model, row by row."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from lit_treerl.sampling import ragged as ragged_module
from lit_treerl.sampling.attention import ragged_attention
from lit_treerl.sampling.base import Request, SamplingParams
from lit_treerl.sampling.kv_cache import PrefixStore, RowCache
from lit_treerl.sampling.ragged import RaggedTokens
from lit_treerl.sampling.transformers import TransformersSampler
from tiny_models import save_tiny_policy


def cache_of(rows: int, length: int, *, heads: int = 2, size: int = 4, layers: int = 1, block: int = 4) -> RowCache:
    config = SimpleNamespace(num_key_value_heads=heads, head_dim=size, num_hidden_layers=layers)
    cache = RowCache(config, torch.float64, torch.device("cpu"), block=block, max_rows=99, max_length=999)  # type: ignore[arg-type]
    cache.reserve(rows, length)
    return cache


# ---- the layout ----


def test_golden_layout(monkeypatch):
    """Two rows decode one token each, then come prompts with 3 and 2 new tokens, behind 2 and 0 known ones."""
    monkeypatch.setattr(ragged_module, "PADDING", 4)
    ragged = RaggedTokens.lay_out(cache_of(4, 8), [(4, 5), (1, 2), (2, 5), (0, 2)])
    assert ragged.row.tolist() == [0, 1, 2, 2, 2, 3, 3]
    assert ragged.position.tolist() == [4, 1, 2, 3, 4, 0, 1]
    assert ragged.last.tolist() == [0, 1, 4, 6]
    decode, prompts = ragged.groups
    assert (decode.first, decode.rows, decode.start, decode.stop, decode.end) == (0, 2, 0, 2, 5)
    assert decode.mask.isfinite().int().tolist() == [[[[1, 1, 1, 1, 1]]], [[[1, 1, 0, 0, 0]]]]
    assert (decode.places, decode.real) == (None, None)
    assert (prompts.first, prompts.rows, prompts.start, prompts.stop, prompts.end) == (2, 2, 2, 7, 5)
    assert prompts.places is not None
    assert prompts.real is not None
    assert prompts.real.tolist() == [[True, True, True], [True, True, False]]
    assert prompts.places[prompts.real].tolist() == [0, 1, 2, 3, 4]
    assert prompts.mask.isfinite().int()[:, 0].tolist() == [
        [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]],  # the last is padding; it must see something
    ]


@pytest.mark.parametrize(
    ("padding", "widths", "cut"),
    [
        (0, [4, 4, 4], [3]),
        (0, [9, 4], [1, 1]),  # 5 tokens of padding, more than a quarter of 18
        (0, [4, 3, 3, 3], [4]),  # 3 of 16 are no more than a quarter
        (5, [9, 4], [2]),
        (512, [200, 1, 1, 100], [1, 2, 1]),  # one token each is a group by itself whatever the padding
        (512, [1, 1], [2]),
        (512, [3], [1]),
        (512, [600, 300, 80], [2, 1]),  # 300 of padding, then 820
        (0, [2, 9, 2], [1, 1, 1]),
    ],
)
def test_rows_are_cut_into_groups_of_like_width(monkeypatch, padding, widths, cut):
    monkeypatch.setattr(ragged_module, "PADDING", padding)
    ragged = RaggedTokens.lay_out(cache_of(len(widths), 8), [(0, width) for width in widths])
    assert [group.rows for group in ragged.groups] == cut


@settings(max_examples=80, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 1, 2, 3, 7, 20])), min_size=1, max_size=12),
    padding=st.sampled_from([0, 3, 512]),
)
def test_every_token_is_in_one_group_and_waste_is_bounded(spans, padding):
    spans = [(start, start + width) for start, width in spans]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged_module, "PADDING", padding)
        ragged = RaggedTokens.lay_out(cache_of(len(spans), 40), spans)
    tokens = [(row, position) for row, (start, stop) in enumerate(spans) for position in range(start, stop)]
    assert list(zip(ragged.row.tolist(), ragged.position.tolist(), strict=True)) == tokens
    assert [tokens[i] for i in ragged.last.tolist()] == [(row, stop - 1) for row, (_, stop) in enumerate(spans)]
    row = token = 0
    for group in ragged.groups:
        mine = spans[row : row + group.rows]
        assert (group.first, group.start) == (row, token)
        assert group.end == max(stop for _, stop in mine)
        widths = [stop - start for start, stop in mine]
        assert group.stop - group.start == sum(widths)
        waste = max(widths) * len(widths) - sum(widths)
        assert waste <= max(padding, max(widths) * len(widths) / 4)
        row, token = row + group.rows, group.stop
        if group.real is None:
            assert set(widths) == {1}
        else:
            assert group.places is not None
            assert 1 not in widths or len(set(widths)) == 1
            assert group.places[group.real].tolist() == list(range(sum(widths)))
            assert int(group.places.max()) < sum(widths)
        for i, (start, stop) in enumerate(mine):
            for query, position in enumerate(range(start, stop)):
                assert group.mask[i, 0, query].isfinite().tolist() == [key <= position for key in range(group.end)]
    assert (row, token) == (len(spans), len(tokens))


# ---- attention ----


def plain_attention(query, key, value, scale):
    """One row's new tokens [Q, A, D] over its T keys [T, H, D], causal to the end of the row."""
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    scores = torch.einsum("qad,tad->aqt", query, key) * scale
    first = key.shape[0] - query.shape[0]
    seen = torch.arange(key.shape[0])[None] <= first + torch.arange(query.shape[0])[:, None]
    return torch.einsum("aqt,tad->qad", scores.masked_fill(~seen, -torch.inf).softmax(-1), value)


@pytest.mark.parametrize("padding", [0, 512])
@pytest.mark.parametrize(("query_heads", "key_heads"), [(2, 2), (4, 2), (6, 1), (6, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_each_row_attends_as_if_it_were_alone(monkeypatch, seed, query_heads, key_heads, padding):
    """Decoding rows, prompts of unlike length and prompts behind a known prefix, over several steps of one cache."""
    monkeypatch.setattr(ragged_module, "PADDING", padding)
    g, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    cache = cache_of(0, 0, heads=key_heads, size=4, layers=2)
    rows: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values [T, H, D] of each row so far
    for step in range(4):
        old = len(rows)
        rows += [(torch.zeros(0, key_heads, 4).double(),) * 2 for _ in range(draw.randint(1, 3))]
        widths = [1] * old + [draw.choice([1, 2, 5, 30]) for _ in rows[old:]]
        spans = [(len(keys), len(keys) + width) for (keys, _), width in zip(rows, widths, strict=True)]
        cache.reserve(len(rows), max(stop for _, stop in spans))
        ragged = RaggedTokens.lay_out(cache, spans)
        total = sum(widths)
        query = torch.randn(total, query_heads, 4, generator=g, dtype=torch.float64)
        key, value = (torch.randn(total, key_heads, 4, generator=g, dtype=torch.float64) for _ in range(2))
        shaped = [x.transpose(0, 1)[None] for x in (query, key, value)]
        module = SimpleNamespace(layer_idx=1)  # layer 0 stays empty: layers do not mix
        out, nothing = ragged_attention(module, *shaped, None, scaling=0.3, ragged=ragged)  # type: ignore[arg-type]
        assert out.shape == (1, total, query_heads, 4)
        assert nothing is None
        parts = [x.split(widths) for x in (query, key, value)]
        for i, (q, k, v) in enumerate(zip(*parts, strict=True)):
            rows[i] = torch.cat([rows[i][0], k]), torch.cat([rows[i][1], v])
            expected = plain_attention(q, *rows[i], 0.3)
            assert torch.allclose(out[0].split(widths)[i], expected, atol=1e-12), (step, i)
    assert not cache.data[:2].any()


def test_neither_stale_keys_nor_other_rows_reach_a_row():
    """What an earlier row left at the same place, further on, and in other rows, must not matter."""
    g = torch.Generator().manual_seed(0)
    spans = [(0, 3), (2, 3), (0, 5)]
    tensors = [torch.randn(1, 2, 9, 4, generator=g, dtype=torch.float64) for _ in range(3)]
    found = []
    for rubbish in (0.0, 1e6):
        cache = cache_of(4, 16)
        cache.data[:] = rubbish
        cache.data[:, 1, :, :2] = 0.5  # the second row's own past
        ragged = RaggedTokens.lay_out(cache, spans)
        found.append(ragged_attention(SimpleNamespace(layer_idx=0), *tensors, None, ragged=ragged)[0])  # type: ignore[arg-type]
    assert torch.equal(*found)


# ---- the cache ----


def test_the_cache_grows_in_blocks_and_keeps_what_it_holds():
    cache = cache_of(1, 3)
    assert cache.data.shape == (2, 1, 2, 4, 4)
    cache.data[:] = torch.arange(cache.data.numel()).view(cache.data.shape)
    kept = cache.data.clone()
    cache.reserve(1, 4)
    assert cache.data.shape[3] == 4
    cache.reserve(2, 9)
    assert cache.data.shape[1] == 2
    assert cache.data.shape[3] == 12
    assert torch.equal(cache.data[:, :1, :, :4], kept)
    assert not cache.data[:, 1:].any()
    assert not cache.data[:, :, :, 4:].any()
    cache.reserve(3, 5)  # more rows than twice what there was are not needed; the length stays
    assert cache.data.shape[1] == 4
    assert cache.data.shape[3] == 12


def test_the_cache_grows_no_further_than_the_limits_but_as_far_as_needed():
    config = SimpleNamespace(num_key_value_heads=1, head_dim=2, num_hidden_layers=1)
    cache = RowCache(config, torch.float32, torch.device("cpu"), block=4, max_rows=3, max_length=10)  # type: ignore[arg-type]
    cache.reserve(2, 7)
    cache.reserve(3, 9)
    assert cache.data.shape[1] == 3
    assert cache.data.shape[3] == 12  # 10 in whole blocks


def test_rows_are_moved_and_blocks_are_views():
    cache = cache_of(3, 8)
    cache.data[:] = torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(0))
    before = cache.data.clone()
    cache.move([2], [0], 5)
    assert torch.equal(cache.data[:, 0, :, :5], before[:, 2, :, :5])
    assert torch.equal(cache.data[:, 0, :, 5:], before[:, 0, :, 5:])
    assert torch.equal(cache.data[:, 1:], before[:, 1:])
    assert torch.equal(cache.blocks()[:, 1, :, 1], cache.data[:, 1, :, 4:8])
    cache.blocks()[:, 1, :, 1] = 7.0
    assert bool((cache.data[:, 1, :, 4:8] == 7.0).all())


@pytest.mark.parametrize("most_bytes", [1, 2**26])
def test_prefixes_come_back_as_they_were_saved(monkeypatch, most_bytes):
    from lit_treerl.sampling import kv_cache

    monkeypatch.setattr(kv_cache, "POOL_BYTES", most_bytes)
    monkeypatch.setattr(kv_cache, "COPY_BYTES", most_bytes)
    cache = cache_of(3, 12)
    store = PrefixStore(cache, 100)
    cache.data[:] = torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(0))
    saved = cache.data.clone()
    store.save([(0, list(range(10))), (1, list(range(20, 29)))])  # two whole blocks each
    cache.data[:] = 0.0
    matches = [store.match(list(range(20, 30))), store.match([*range(8), 99, 98]), store.match([1, 2, 3])]
    assert [len(match.slots) for match in matches] == [2, 2, 0]
    store.load([match.slots for match in matches], first=0)
    assert torch.equal(cache.data[:, 0, :, :8], saved[:, 1, :, :8])
    assert torch.equal(cache.data[:, 1, :, :8], saved[:, 0, :, :8])
    assert not cache.data[:, 2].any()
    assert len(store.match(list(range(8))).slots) == 1  # the last token has to be computed
    store.clear()
    assert store.match(list(range(10))).slots == []


# ---- the whole engine ----


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def policy(tmp_path_factory, request):
    return save_tiny_policy(tmp_path_factory.mktemp(request.param), kind=request.param, seed=5)


def sample(policy, requests: list[Request], **settings) -> dict[int, tuple[list[int], list[float]]]:
    sampler = TransformersSampler(**settings)
    sampler.start(policy, AutoTokenizer.from_pretrained(policy), max_context=200)
    for request in requests:
        sampler.submit(request)
    done = {}
    while finished := sampler.poll():
        done |= {c.id: (c.ids, c.logprobs) for c in finished}
    return done


def mixed_requests(seed: int = 0) -> list[Request]:
    draw = random.Random(seed)
    stem = [draw.randrange(3, 97) for _ in range(40)]
    out = []
    for i in range(10):
        prompt = stem[: draw.choice([1, 9, 17, 40])] + [draw.randrange(3, 97) for _ in range(draw.choice([0, 1, 30]))]
        params = SamplingParams(draw.randint(1, 12), draw.choice([0.0, 0.7, 1.0]), stop=("e",))
        out.append(Request(i, prompt, params, seed=i))
    return out


def assert_alike(one, other) -> None:
    assert one.keys() == other.keys()
    for key, (ids, logprobs) in one.items():
        assert other[key][0] == ids
        assert other[key][1] == pytest.approx(logprobs, abs=1e-5)


def test_logprobs_are_those_of_the_plain_model(policy):
    requests = mixed_requests()
    model = AutoModelForCausalLM.from_pretrained(policy)
    for key, (ids, logprobs) in sample(policy, requests).items():
        prompt, heat = list(requests[key].prompt_ids), requests[key].params.temperature or 1.0
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / heat
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
        assert logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch": 1},
        {"prefill_tokens": 1},  # every prompt is longer
        {"prefill_tokens": 20, "max_batch": 3},
        {"prefix_cache": False},
        {"cache_tokens": 16, "max_batch": 2},
        {"prefix_cache": False, "prefill_tokens": 1, "refill": 1.0},
    ],
    ids=str,
)
def test_how_rows_are_batched_changes_nothing(policy, settings):
    requests = mixed_requests(1)
    assert_alike(sample(policy, requests), sample(policy, requests, **settings))


def test_the_order_of_submission_changes_nothing(policy):
    requests = mixed_requests(2)
    plain = sample(policy, requests)
    for seed in range(3):
        order = random.Random(seed).sample(requests, len(requests))
        assert_alike(plain, sample(policy, order, max_batch=4))


def test_small_groups_change_nothing(policy, monkeypatch):
    requests = mixed_requests(3)
    plain = sample(policy, requests)
    monkeypatch.setattr(ragged_module, "PADDING", 0)
    assert_alike(plain, sample(policy, requests))


def test_the_longest_context_fits(policy):
    draw = random.Random(0)
    prompt = [draw.randrange(3, 97) for _ in range(188)]
    requests = [
        Request(0, prompt, SamplingParams(12, 1.0), seed=0),
        Request(1, prompt, SamplingParams(12, 1.0), seed=0),
        *(Request(i, prompt[:1], SamplingParams(199, 1.0), seed=i) for i in range(2, 10)),
    ]
    done = sample(policy, requests, max_batch=2)
    assert done[0][0] == done[1][0]
    assert done[0][1] == pytest.approx(done[1][1], abs=1e-5)
    assert max(len(done[i][0]) for i in range(2, 10)) == 199  # one that no end of text cut short
