"""WebShop's three files: reading released or generated ones, writing generated ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lit_treerl.envs.webshop.generate import CatalogueRows
from lit_treerl.envs.webshop.products import ATTRIBUTES_FILE, HUMAN_FILE, PRODUCTS_FILE


def read_catalogue(folder: str | Path, human: bool = True) -> CatalogueRows:
    """Read a folder of released files.

    Args:
        folder: holds ``items_shuffle.json``, ``items_ins_v2.json`` and, for human goals, ``items_human_ins.json``.
        human: read the human instructions.

    Raises:
        FileNotFoundError: naming the file that is missing and how to make a generated set.
        ValueError: naming the file that is broken.
    """
    folder = Path(folder).expanduser()
    return CatalogueRows(
        _read(folder / PRODUCTS_FILE, list),
        _read(folder / ATTRIBUTES_FILE, dict),
        _read(folder / HUMAN_FILE, dict) if human else {},
    )


def write_catalogue(rows: CatalogueRows, folder: str | Path) -> list[Path]:
    """Write the three files; returns their paths."""
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    contents = {PRODUCTS_FILE: rows.products, ATTRIBUTES_FILE: rows.attributes, HUMAN_FILE: rows.human}
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return [folder / name for name in contents]


def _read(path: Path, form: type) -> Any:
    if not path.is_file():
        raise FileNotFoundError(
            f"WebShop: there is no {path}. `catalogue` must be a folder with {PRODUCTS_FILE}, {ATTRIBUTES_FILE} and, "
            f"for human goals, {HUMAN_FILE}: the released files, or a generated set from `lit-treerl make-shop --out "
            f"{path.parent}`; null plays in a generated shop without files"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: is no JSON, or only a part of it was downloaded ({error})") from None
    if not isinstance(content, form):
        wanted = "a list of products" if form is list else "an object of asins"
        raise ValueError(f"{path}: must be {wanted}, got {type(content).__name__}")
    return content
