"""Write the makings of the seed policy: ``python -m lit_treerl.data.embedded --out demos.jsonl --init-policy DIR``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lit_treerl.data.embedded.demonstrations import demonstrations
from lit_treerl.data.embedded.policy import POLICY

DEMO_WORLDS = range(1000, 1008)


def main() -> None:
    """Parse the command line and write what it asks for."""
    parser = argparse.ArgumentParser(prog="python -m lit_treerl.data.embedded", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSONL file for the demonstrations")
    parser.add_argument("-n", "--episodes", type=int, default=20_000, help="number of demonstrations (default 20000)")
    parser.add_argument("--worlds", type=int, nargs="+", default=list(DEMO_WORLDS), help="seeds of their worlds")
    parser.add_argument("--seed", type=int, default=0, help="seed of demonstrations and of the weights (default 0)")
    parser.add_argument("--init-policy", type=Path, help="folder for a randomly initialised policy with tokenizer")
    args = parser.parse_args()
    if args.out is None and args.init_policy is None:
        parser.error("nothing to do: give --out FILE, --init-policy DIR or both")
    if args.init_policy is not None:
        print(f"wrote the policy {POLICY.init(args.init_policy, args.seed)}")
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("w", encoding="utf-8") as file:
            for row in demonstrations(args.worlds, args.episodes, args.seed):
                file.write(json.dumps(row) + "\n")
        print(f"wrote {args.episodes} demonstrations to {args.out}")


if __name__ == "__main__":
    main()
