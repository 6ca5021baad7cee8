"""Where a policy's files are, and its tokenizer."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DATA = Path(__file__).parent / "data"
EMBEDDED = {
    "embedded": ("embedded", "lit_treerl.data.embedded.policy"),
    "embedded-alfworld": ("alfworld", "lit_treerl.data.alfworld.policy"),
    "embedded-webshop": ("webshop", "lit_treerl.data.webshop.policy"),
}
"""Policies of the package: the folder below ``data`` with the ``seed_policy``, and the module with the POLICY."""
UNTRAINED = "-untrained"


def policy_path(policy: str, key: str = "model.policy") -> str:
    """Folder or hub name of a policy.

    ``embedded`` is the seed policy of the embedded question answering, ``embedded-alfworld`` and ``embedded-webshop``
    are those of the two worlds. With ``-untrained`` behind it, it is the same with random weights, written to the cache
    folder: where the supervised warm start begins.

    Raises:
        FileNotFoundError: where ``policy`` looks like a path but holds no ``config.json``.
    """
    if policy in EMBEDDED:
        return str(DATA / EMBEDDED[policy][0] / "seed_policy")
    if policy.removesuffix(UNTRAINED) in EMBEDDED:
        return str(_untrained(policy))
    path = Path(policy).expanduser()
    looks_local = path.exists() or policy.startswith((".", "/", "~")) or policy.count("/") != 1
    if looks_local and not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"{key}: {policy!r} has no config.json; give a Hugging Face model folder, a hub name "
            f"(owner/name), or one of {', '.join(EMBEDDED)}, each also with {UNTRAINED!r} behind it"
        )
    return str(path) if path.exists() else policy


def load_tokenizer(policy: str) -> PreTrainedTokenizerBase:
    """The policy's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(policy_path(policy))


def _untrained(policy: str) -> Path:
    from lit_treerl.retrieval.index_cache import default_cache

    made = import_module(EMBEDDED[policy.removesuffix(UNTRAINED)][1]).POLICY
    folder = default_cache() / f"{policy}-{made.fingerprint()}"
    if not (folder / "tokenizer.json").is_file():  # the last file that is written
        folder.mkdir(parents=True, exist_ok=True)
        made.init(folder)
    return folder
