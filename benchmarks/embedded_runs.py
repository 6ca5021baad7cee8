"""Tree-GRPO and chain GRPO on the embedded world over several seeds: held-out EM at equal tokens, wall time.

    python -m benchmarks.embedded_runs [--seeds 5] [--parallel 1] [--root runs/embedded] [--out embedded_runs.json]

Runs `lit-treerl fit` on configs/tree_grpo.yaml and configs/grpo.yaml as they are, only with more seeds (and as many
iterations for the chains as the trees' tokens pay for), and reads the metrics.csv of each. Finished runs are kept, so
it goes on where it stopped. EM at a token mark is interpolated between the two validations around it. From the
project's root.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.study.curves import at, curve, read_metrics

ARMS = {"tree_grpo": 30, "grpo": 34}  # iterations
MARKS = (60_000, 90_000, 120_000, 150_000, 180_000)


def run(arm: str, seed: int, root: Path) -> dict:
    """One run's curve; from disk where it is finished."""
    folder = root / f"{arm}_{seed}"
    done = folder / "seconds.json"
    if not done.is_file():
        command = [sys.executable, "-c", "from lit_treerl.cli import main; main()", "fit"]
        command += ["--config", f"configs/{arm}.yaml", "--seed_everything", str(seed)]
        command += ["--trainer.max_epochs", str(ARMS[arm]), "--trainer.default_root_dir", str(folder)]
        command += ["--trainer.enable_progress_bar", "false"]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        done.write_text(json.dumps(time.perf_counter() - start))
    metrics = max(folder.glob("version_*/metrics.csv"), key=lambda path: path.stat().st_mtime)
    rows = read_metrics(metrics)
    points, tokens = curve(rows), sum(row.get("rollout/sampled_tokens", 0) for row in rows)
    what = {"arm": arm, "seed": seed, "seconds": json.loads(done.read_text())}
    return what | {"points": points, "start": points[0][1], "end": points[-1][1], "tokens": tokens}


def mean_and_error(values: list[float]) -> str:
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{fmean(values):.3f} +- {error:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--root", type=Path, default=Path("runs/embedded"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    jobs = [(arm, seed) for arm in ARMS for seed in range(args.seeds)]
    with ThreadPoolExecutor(args.parallel) as pool:
        results = list(pool.map(lambda job: run(*job, args.root), jobs))
    for r in results:
        gain = r["end"] - r["start"]
        print(
            f"{r['arm']:>9} seed {r['seed']}  EM {r['start']:.3f} -> {r['end']:.3f} ({gain:+.3f})"
            f"  tokens {r['tokens']:,.0f}  {r['seconds']:.0f} s"
        )
    for arm in ARMS:
        mine = [r for r in results if r["arm"] == arm]
        marks = "  ".join(f"{m // 1000}k {mean_and_error([at(r['points'], m) for r in mine])}" for m in MARKS)
        print(f"{arm:>9} EM at sampled tokens, mean +- standard error over {len(mine)} seeds:  {marks}")
    if args.out:
        args.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
