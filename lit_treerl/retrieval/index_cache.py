"""Indexes kept on disk: built once per corpus content and settings, then memory-mapped."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from lit_treerl.retrieval.corpus import file_digest, read_corpus
from lit_treerl.retrieval.index import WORD, Backend, IndexSettings, PassageIndex, build_model

_log = logging.getLogger(__name__)
_MANIFEST = "manifest.json"


def default_cache() -> Path:
    """``$LIT_TREERL_CACHE`` or ``~/.cache/lit_treerl``."""
    return Path(os.environ.get("LIT_TREERL_CACHE") or Path.home() / ".cache" / "lit_treerl")


def open_index(
    corpus: str | Path, settings: IndexSettings, backend: Backend = "auto", cache: str | Path | None = None
) -> PassageIndex:
    """Open the index of a JSONL corpus, building it on first use and again when its files are damaged.

    Args:
        corpus: the JSONL file.
        settings: part of the cache key, like the file's content.
        backend: scorer of bm25s; not part of the key.
        cache: folder of all indexes; :func:`default_cache` when None.

    Raises:
        FileNotFoundError: when there is no such corpus.
        ValueError: naming the corpus (and line) when it is empty or broken.
    """
    if not Path(corpus).is_file():
        raise FileNotFoundError(f"no corpus at {corpus}; give a JSONL file of passages")
    folder = Path(cache or default_cache()).expanduser() / f"bm25-{_key(corpus, settings)}"
    for _ in range(2):
        if folder.exists():
            try:
                return _load(folder, settings, backend)
            except Exception as error:  # whatever a damaged file makes the readers raise
                _log.warning("the index in %s is damaged (%s); building it again", folder, error)
                shutil.rmtree(folder, ignore_errors=True)
        _build(corpus, settings, folder)
    return _load(folder, settings, backend)


def _key(corpus: str | Path, settings: IndexSettings) -> str:
    import bm25s

    parts = [file_digest(corpus), asdict(settings), WORD, bm25s.__version__]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def _build(corpus: str | Path, settings: IndexSettings, folder: Path) -> None:
    """Build beside the final place, then rename: others see a whole index or none."""
    rows = [{"id": p.id, "title": p.title, "text": p.text} for p in read_corpus(corpus)]
    try:
        model = build_model(rows, settings)
    except ValueError as error:
        raise ValueError(f"{corpus}: {error}") from None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        whole = Path(temporary) / "index"
        model.save(whole, corpus=rows, show_progress=False, raise_on_serialization_error=True)
        sizes = {path.name: path.stat().st_size for path in sorted(whole.iterdir())}
        (whole / _MANIFEST).write_text(json.dumps(sizes), encoding="utf-8")
        try:
            whole.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was first; its index is as good
                raise


def _load(folder: Path, settings: IndexSettings, backend: Backend) -> PassageIndex:
    import bm25s

    for name, size in json.loads((folder / _MANIFEST).read_text(encoding="utf-8")).items():
        if (folder / name).stat().st_size != size:
            raise ValueError(f"{name} has {(folder / name).stat().st_size} bytes instead of {size}")
    model = bm25s.BM25.load(folder, load_corpus=True, mmap=True, show_progress=False, verbosity=0)
    return PassageIndex(model, cast(Any, model.corpus), settings, backend)
