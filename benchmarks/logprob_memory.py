"""Log-probs and entropies at a vocabulary of 151,936: chunked against full logits, forward and backward.

    python -m benchmarks.logprob_memory [--tokens 2048] [--hidden 256] [--repeats 3] [--frozen] [--out found.json]

Printed are peak memory and time of the chunked computation over those of full logits, medians of one run, and how far
log-probs and gradients differ. Chunks hold the gradient of the output embedding all the while, full logits make it when
most of their memory is free again; with ``--frozen`` the embedding has none. Each way is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.memory import PeakMemory
from lit_treerl.modeling.logprobs import token_logprobs

VOCABULARY = 151_936


def run(tokens: int, hidden: int, chunk: int | None, frozen: bool = False) -> dict[str, Any]:
    """One forward and backward, with all tokens in one chunk or by default chunks."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(tokens, hidden, generator=generator).requires_grad_()
    weight = (0.05 * torch.randn(VOCABULARY, hidden, generator=generator)).requires_grad_(not frozen)
    targets = torch.randint(VOCABULARY, (tokens,), generator=generator)
    memory = PeakMemory()
    memory.start()
    start = time.perf_counter()
    logprobs, entropies = token_logprobs(states, weight, targets, 1.0, chunk)
    (logprobs.sum() + 0.01 * entropies.sum()).backward()
    seconds = time.perf_counter() - start
    assert states.grad is not None
    found = {"logprobs": logprobs.detach().numpy(), "gradient": states.grad.numpy()}
    return {"seconds": seconds, "memory": memory.peak(), **found}


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--tokens", 2048), ("--hidden", 256), ("--repeats", 3)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--frozen", action="store_true", help="no gradient of the output embedding")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"chunks": [], "full": []}
    for _ in range(given.repeats):
        for way, chunk in (("chunks", None), ("full", given.tokens)):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found[way].append(pool.apply(run, (given.tokens, given.hidden, chunk, given.frozen)))
    pairs = list(zip(found["chunks"], found["full"], strict=True))
    row = {
        "tokens": given.tokens,
        "full logits MB": round(4 * given.tokens * VOCABULARY / 1e6),
        "embedding gradient MB": 0 if given.frozen else round(4 * given.hidden * VOCABULARY / 1e6),
        "peak MB": {way: round(median(r["memory"] for r in runs) / 1e6) for way, runs in found.items()},
        "memory": round(median(a["memory"] / b["memory"] for a, b in pairs), 3),
        "time": round(median(a["seconds"] / b["seconds"] for a, b in pairs), 2),
        "gaps": {k: float(f"{abs(pairs[0][0][k] - pairs[0][1][k]).max():.1e}") for k in ("logprobs", "gradient")},
    }
    print(json.dumps(row))
    if given.out:
        given.out.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
