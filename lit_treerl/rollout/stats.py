"""What an iteration's rollouts cost and brought."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from lit_treerl.sampling.base import SamplerCounters
from lit_treerl.trees.tree import ROOT, RolloutGroup, Status, Tree


def seed_chain(tree: Tree) -> int | None:
    """The leaf of the tree's first, unforced chain; None when the tree has no leaf."""
    node, children = ROOT, tree.children()
    while natural := [child for child in children[node] if tree.natural[child]]:
        node = natural[0]
    return node if node != ROOT else None


def path_tokens(tree: Tree, leaf: int) -> int:
    """Sampled tokens on the path to ``leaf``."""
    return sum(tree.action_len[node] for node in tree.path(leaf))


def total_tool_calls(trees: Sequence[Tree]) -> int:
    """Tool calls made by all nodes, each once."""
    return sum(int(info.get("tool_calls", 0)) for tree in trees for info in tree.info)


def unique_token_ratio(trees: Sequence[Tree]) -> float:
    """Unique tokens of the trees over the tokens of their leaves' separate trajectories."""
    unique = raw = 0
    for tree in trees:
        paths = [tree.path(leaf) for leaf in tree.leaves()]
        sizes = [len(ids) for ids in tree.ids]
        unique += sum(sizes[node] for node in {node for path in paths for node in path})
        raw += sum(sizes[node] for path in paths for node in path)
    return unique / raw if raw else 1.0


def first_error(groups: Sequence[RolloutGroup]) -> str:
    """What the first failed branch says of its failure; "" where none failed."""
    errors = (info["error"] for group in groups for tree in group.trees for info in tree.info if "error" in info)
    return next(errors, "")


def rollout_stats(groups: Sequence[RolloutGroup], counters: SamplerCounters) -> dict[str, float]:
    """Numbers to log for one iteration, named as they are logged.

    ``rollout/leaves_per_chain`` is the number of leaves obtained for the sampled tokens of one average chain; an
    average chain is the mean over the trees' first, unforced chains. ``train/reward`` is NaN where every episode
    failed.
    """
    trees = [tree for group in groups for tree in group.trees]
    leaves = [leaf for tree in trees for leaf in tree.leaves() if tree.status[leaf] is not Status.FAILED]
    chains = [(tree, leaf) for tree in trees if (leaf := seed_chain(tree)) is not None]
    sampled = sum(tree.sampled_tokens() for tree in trees)
    chain_tokens = fmean([path_tokens(tree, leaf) for tree, leaf in chains]) if chains else 0.0
    statuses = [status for tree in trees for status in tree.status]
    returns = [tree.leaf_return(leaf) for group in groups for tree, leaf in group.leaves()]
    return {
        "train/reward": fmean(returns) if returns else float("nan"),
        "rollout/leaves": len(leaves),
        "rollout/sampled_tokens": sampled,
        "rollout/prompt_tokens": counters.prompt_tokens,
        "rollout/cached_tokens": counters.cached_tokens,
        "rollout/tool_calls": total_tool_calls(trees),
        "rollout/leaves_per_chain": len(leaves) * chain_tokens / sampled if sampled else 0.0,
        "rollout/turns": fmean([tree.depth(leaf) for tree, leaf in chains]) if chains else 0.0,
        "rollout/unique_token_ratio": unique_token_ratio(trees),
        "rollout/failed": statuses.count(Status.FAILED),
        "rollout/truncated": statuses.count(Status.TRUNCATED),
        "rollout/observations_cut": sum(bool(info.get("observation_cut")) for tree in trees for info in tree.info),
    }
