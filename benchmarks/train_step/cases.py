"""What is trained on: trees whose leaves part late or early, and random models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lit_treerl.algorithms.base import Credit
from lit_treerl.modeling.actor import Actor
from lit_treerl.modeling.attention import attention_kernel
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Status, Tree

SIZES: dict[str, dict[str, int]] = {
    "5m": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096},
    "0.5b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 24, "num_attention_heads": 16}
    | {"num_key_value_heads": 8, "head_dim": 64, "vocab_size": 151936},
}


@dataclass(frozen=True)
class Case:
    """A tree whose leaves part after ``fork`` of ``turns`` turns of ``step`` tokens, and what trains on it."""

    leaves: int
    turns: int
    fork: int
    step: int
    critic: bool
    size: str = "5m"
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1


def draw_tree(case: Case) -> Tree:
    """Random tokens, half of a turn's sampled; the first turn is the prompt, the last has no observation."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(SIZES[case.size]["vocab_size"], (count,), generator=generator).tolist()

    tree = Tree("bench")
    tree.add_root(tokens(case.step))

    def turns(tip: int, count: int, end: bool) -> int:
        for left in range(count, 0, -1):
            last = end and left == 1
            action = tokens(case.step if last else case.step // 2)
            tip = tree.add_action(tip, action, [-1.0] * len(action), 0)
            tree.observe(tip, tokens(case.step - len(action)), status=Status.TERMINAL if last else Status.OPEN)
        return tip

    trunk = turns(0, case.fork - 1, end=False)
    for leaf in range(case.leaves):
        tree.reward[turns(trunk, case.turns - case.fork, end=True)] = float(leaf % 2)
    return tree


def apart(tree: Tree) -> list[Tree]:
    """Every trajectory of ``tree`` as a tree of its own."""
    out = []
    for leaf in tree.training_leaves():
        single = Tree(tree.task_id, len(out))
        single.add_root(list(tree.ids[0]))
        for depth, node in enumerate(tree.path(leaf)[1:]):
            length = tree.action_len[node]
            made = single.add_action(depth, tree.ids[node][:length], tree.logprobs[node], 0)
            single.observe(made, tree.ids[node][length:], reward=tree.reward[node], status=tree.status[node])
        out.append(single)
    return out


def training(trees: Sequence[Tree]) -> tuple[list[RolloutGroup], list[list[Credit]], list[list[torch.Tensor]]]:
    """Groups of one tree each, with an advantage of 1 or -1 for each leaf and equal weights."""
    groups, credits, weights = [], [], []
    for tree in trees:
        leaves = tree.training_leaves()
        sign = torch.tensor([1.0 if tree.reward[leaf] else -1.0 for leaf in leaves])
        groups.append(RolloutGroup(Task("bench", "bench", "?"), [tree]))
        credits.append([Credit(leaves, sign.repeat(len(tree), 1))])
        weights.append([torch.full((len(leaves),), 1e-3)])
    return groups, credits, weights


def random_model(case: Case, seed: int) -> Actor:
    """A Qwen3 of the case's size."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(seed)
    config = Qwen3Config(**SIZES[case.size], tie_word_embeddings=True)  # type: ignore[arg-type]
    kind = {"dtype": getattr(torch, case.dtype), "attn_implementation": attention_kernel("tree")}
    return Actor(AutoModelForCausalLM.from_config(config, **kind).to(case.device)).train()
