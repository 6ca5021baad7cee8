"""Wall time per sampled token of tree rollouts over chain rollouts, and leaves per chain against the closed form.

    python benchmarks/rollout_cost.py [--sampler vllm] [--tasks 32] [--max-batch 256] [--repeats 5]

Trees are measured against chains with the same number of leaves, and against as many chains as cost the same sampled
tokens, in turn, in one process, on the same tasks; the ratio of each round is taken and the median reported with its
range, because machines are noisy. An engine is kept full where --max-batch is well below the number of rollouts.
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

TURNS = 5  # mean of the embedded questions
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


def ratio(values: list[float]) -> str:
    """Median and range."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


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
        arms = {
            "tree": tree,
            "equal_leaves": TreeSearch(trees=tree.leaves_per_task, expansions=0),
            "equal_tokens": TreeSearch(trees=round(tree.expected_chains(TURNS)), expansions=0),
        }
        found = []
        for seed in range(args.repeats + 1):
            order = list(arms)[seed % 3 :] + list(arms)[: seed % 3]  # nobody always comes first
            costs = {arm: measure(sampler, actor, env, tokens, tasks, arms[arm], seed) for arm in order}
            if seed:  # the first round warms up
                found.append(costs)
        stats = [costs["tree"][1] for costs in found]
        turns = median(numbers["rollout/turns"] for numbers in stats)
        rows.append(
            {
                "search": f"M={m} N={n} L={rounds}",
                **{
                    f"time_per_token_over_chains_of_{arm}": ratio([c["tree"][0] / c[arm][0] for c in found])
                    for arm in ("equal_leaves", "equal_tokens")
                },
                "leaves_per_chain": round(median(numbers["rollout/leaves_per_chain"] for numbers in stats), 3),
                "closed_form": round(tree.leaves_per_chain(turns), 3),
                "mean_turns": round(turns, 2),
            }
        )
        print(rows[-1], flush=True)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
