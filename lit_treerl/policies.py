"""Where a policy's files are, and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EMBEDDED = "embedded"
UNTRAINED = "embedded-untrained"


def policy_path(policy: str, key: str = "model.policy") -> str:
    """Folder or hub name of a policy.

    ``embedded`` is the seed policy that ships with the package, ``embedded-untrained`` the same with random weights,
    written to the cache folder: where the supervised warm start begins.

    Raises:
        FileNotFoundError: where ``policy`` looks like a path but holds no ``config.json``.
    """
    if policy == EMBEDDED:
        return str(Path(__file__).parent / "data" / "embedded" / "seed_policy")
    if policy == UNTRAINED:
        return str(_untrained())
    path = Path(policy).expanduser()
    looks_local = path.exists() or policy.startswith((".", "/", "~")) or policy.count("/") != 1
    if looks_local and not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"{key}: {policy!r} has no config.json; give a Hugging Face model folder, a hub name "
            f"(owner/name), {EMBEDDED!r} or {UNTRAINED!r}"
        )
    return str(path) if path.exists() else policy


def load_tokenizer(policy: str) -> PreTrainedTokenizerBase:
    """The policy's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(policy_path(policy))


def _untrained() -> Path:
    from lit_treerl.data.embedded.policy import init_policy
    from lit_treerl.retrieval.index_cache import default_cache

    folder = default_cache() / UNTRAINED
    if not (folder / "tokenizer.json").is_file():  # the last file that is written
        folder.mkdir(parents=True, exist_ok=True)
        init_policy(folder)
    return folder
