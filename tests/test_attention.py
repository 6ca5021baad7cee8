import random
from types import SimpleNamespace

import pytest
import torch

from lit_treerl.algorithms.aggregation import leaf_weights
from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.modeling.attention import check_backbone, forward_hidden
from lit_treerl.modeling.dense_attention import row_layout, row_mask, segment_ends
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.packing import build_packs
from tree_cases import group, random_tree


def layout(segment_lengths: list[int], segment_parent: list[int]) -> Pack:
    segment = torch.repeat_interleave(torch.arange(len(segment_lengths)), torch.tensor(segment_lengths))
    count = len(segment)
    empty = torch.zeros(count, dtype=torch.long)
    zero = torch.zeros(count)
    return Pack(empty, empty, empty, segment, torch.tensor(segment_parent), empty > 0, zero, zero, zero, zero)


def test_golden_mask():
    # row 0: segment 0 (2 tokens) with children 1 (1 token, itself with child 2) and 3 (1 token); row 1: segment 4
    pack = layout([2, 1, 1, 1, 2], [-1, 0, 1, 0, -1])
    assert segment_ends(pack.segment_parent).tolist() == [4, 3, 3, 4, 5]
    row, column = row_layout(pack)
    assert row.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert column.tolist() == [0, 1, 2, 3, 4, 0, 1]
    mask = row_mask(pack, row, column)
    assert mask[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]
    assert mask[1].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],  # padding sees itself alone
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize("context", ["growing", "window"])
@pytest.mark.parametrize("seed", range(4))
def test_a_token_sees_just_the_tokens_on_its_chain_of_parents(context, seed):
    rng = random.Random(seed)
    members = [group(*(random_tree(rng, context=context, index=i, prompt=[i // 2 + 1, 2]) for i in range(4)))]
    credits = GRPO()(members)
    (pack,) = build_packs(members, credits, leaf_weights(members, credits), max_tokens=9999)
    row, column = row_layout(pack)
    mask = row_mask(pack, row, column)
    for token in range(len(pack)):
        chain, walk = set(), token
        while walk >= 0:
            chain.add(walk)
            walk = int(pack.parent[walk])
        seen = {k for k in range(len(pack)) if row[k] == row[token] and mask[row[token], column[token], column[k]]}
        assert seen == chain


class Recorder(torch.nn.Module):
    """A backbone that returns the position of each token as its hidden state."""

    def __init__(self, **config) -> None:
        super().__init__()
        self.config = SimpleNamespace(**({"_attn_implementation": "sdpa", "model_type": "test"} | config))
        self.calls: list[dict] = []

    def forward(self, **inputs):
        self.calls.append(inputs)
        return SimpleNamespace(last_hidden_state=inputs["position_ids"][..., None].double())


def test_the_backbone_gets_padded_rows_positions_and_no_cache():
    pack = layout([2, 1, 1, 1, 2], [-1, 0, 1, 0, -1])
    position = torch.tensor([0, 1, 2, 3, 2, 0, 1])
    pack = Pack(**{**vars(pack), "ids": torch.arange(10, 17), "position": position})
    backbone = Recorder()
    assert forward_hidden(backbone, pack).squeeze(-1).tolist() == position.tolist()
    (call,) = backbone.calls
    assert call["input_ids"].tolist() == [[10, 11, 12, 13, 14], [15, 16, 0, 0, 0]]
    assert call["attention_mask"].shape == (2, 1, 5, 5)
    assert call["attention_mask"].dtype == torch.bool
    assert call["use_cache"] is False


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"_attn_implementation": "eager"},
            "packs need attn_implementation='lit_treerl_tree' or 'sdpa', .* with 'eager'",
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8},
            "full attention in every layer",
        ),
        ({"layer_types": ["linear_attention"]}, "full attention in every layer"),
        ({"sliding_window": 8}, "sliding_window 8"),
    ],
)
def test_models_that_would_be_silently_wrong_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        check_backbone(Recorder(**config))
    check_backbone(Recorder(layer_types=["full_attention"], sliding_window=None))
