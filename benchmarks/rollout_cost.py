"""Wall time per sampled token of tree rollouts over chain rollouts, and leaves per chain against the closed form.

    python benchmarks/rollout_cost.py [--sampler vllm] [--tasks 32] [--max-batch 256] [--repeats 5]

Chains and trees are measured in turn, in one process, on the same tasks and with the same number of leaves; the ratio
of each pair is taken and the median reported, because machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from lit_treerl.data.embedded_search import EmbeddedRetriever, EmbeddedTasks
from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.modeling.actor import Actor
from lit_treerl.policies import load_tokenizer, policy_path
from lit_treerl.rollout.grower import RolloutLimits, TreeGrower
from lit_treerl.rollout.stats import rollout_stats
from lit_treerl.rollout.tokens import Tokens
from lit_treerl.sampling.transformers import TransformersSampler
from lit_treerl.sampling.vllm import VLLMSampler
from lit_treerl.trees.search import TreeSearch

LIMITS = RolloutLimits(max_new_tokens=16, max_context=512, max_observation_tokens=64)


def embedded_env() -> SearchQA:
    env = SearchQA(
        EmbeddedRetriever(),
        topk=2,
        max_turns=7,
        prompt_template="{question}",
        passage_format="{text}",
        joiner=" ",
        lead=" ",
        padding=" ",
        trail=" ",
        nothing_found="none",
        correction="none",
    )
    env.setup()
    return env


def measure(sampler, actor, env, tokens, tasks, search, seed) -> tuple[float, dict[str, float]]:
    """Seconds per sampled token, and the rollout numbers; the prefix cache starts empty."""
    sampler.load_weights(actor.named_weights(), seed)
    sampler.reset_counters()
    start = time.perf_counter()
    groups = TreeGrower(sampler, env, tokens, search, LIMITS, temperature=1.0, seed=seed).grow(
        tasks, [search.trees] * len(tasks)
    )
    seconds = time.perf_counter() - start
    stats = rollout_stats(groups, sampler.reset_counters())
    return seconds / stats["rollout/sampled_tokens"], stats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="embedded")
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--sampler", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--max-batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    env, tokens = embedded_env(), Tokens(load_tokenizer(args.policy))
    tasks = EmbeddedTasks("train", args.tasks, hops=(2, 3, 4, 5, 6)).load()
    if args.sampler == "vllm":
        sampler = VLLMSampler(dtype="float32", max_num_seqs=args.max_batch)
    else:
        sampler = TransformersSampler(max_batch=args.max_batch)
    sampler.start(policy_path(args.policy), tokens.tokenizer, max_context=LIMITS.max_context)
    actor = Actor.from_pretrained(policy_path(args.policy))
    rows = []
    for m, n, rounds in ((2, 2, 1), (1, 4, 1), (2, 1, 2)):
        tree = TreeSearch(trees=m, expansions=n, rounds=rounds)
        chain = TreeSearch(trees=tree.leaves_per_task, expansions=0)
        pairs = []
        for seed in range(args.repeats + 1):
            chain_cost, _ = measure(sampler, actor, env, tokens, tasks, chain, seed)
            tree_cost, stats = measure(sampler, actor, env, tokens, tasks, tree, seed)
            if seed:  # the first pair warms up
                pairs.append((tree_cost / chain_cost, stats))
        ratio = median(pair[0] for pair in pairs)
        leaves = median(pair[1]["rollout/leaves_per_chain"] for pair in pairs)
        turns = median(pair[1]["rollout/turns"] for pair in pairs)
        row = {
            "search": f"M={m} N={n} L={rounds}",
            "time_per_token_tree_over_chain": round(ratio, 3),
            "leaves_per_chain": round(leaves, 3),
            "closed_form": round(tree.leaves_per_chain(turns), 3),
            "mean_turns": round(turns, 2),
        }
        rows.append(row)
        print(row, flush=True)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
