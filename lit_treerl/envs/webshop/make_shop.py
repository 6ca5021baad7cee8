"""The command ``lit-treerl make-shop``: write a generated catalogue in the form of WebShop's released files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lit_treerl.envs.webshop.files import write_catalogue
from lit_treerl.envs.webshop.generate import generate_catalogue
from lit_treerl.envs.webshop.shop import GENERATED
from lit_treerl.envs.webshop.words import MAX_TYPES


def main(args: Sequence[str]) -> None:
    """Write the catalogue; exits with 2 on wrong arguments."""
    parser = argparse.ArgumentParser(prog="lit-treerl make-shop", description=__doc__)
    parser.add_argument("--out", required=True, help="folder for the three files")
    parser.add_argument("--products", type=int, default=GENERATED, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of everything drawn (default: %(default)s)")
    parser.add_argument("--types", type=int, default=MAX_TYPES, help="product types (default: %(default)s)")
    options = parser.parse_args(args)
    try:
        rows = generate_catalogue(options.products, options.seed, options.types)
        paths = write_catalogue(rows, options.out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    instructions = sum(map(len, rows.human.values()))
    print(f"{len(rows.products)} products and {instructions} instructions in {', '.join(map(str, paths))}")
