"""The embedded policy of a small WebShop: a Qwen3 over the words of its pages (about 0.7 MB in bfloat16)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lit_treerl.data.word_policy import WordPolicy
from lit_treerl.envs.webshop.generate import vocabulary

SEED_POLICY = Path(__file__).parent / "seed_policy"
SHOP: dict[str, Any] = {"products": 800, "types": 12}
"""Of the shop that the policy has words for; any ``seed``."""
PAGES: dict[str, Any] = {
    "per_page": 3,
    "spaced": True,
    "context": "growing",
    "prompt_template": "{task} {observation}",
    "feedback_template": " {observation} ",
    "unreadable": "something is missing",
}
"""How its environment shows pages: short, growing, without a list of what can be clicked."""
_TAGS = [f"<{slash}{tag}>" for tag in ("think", "action") for slash in ("", "/")]

POLICY = WordPolicy([*_TAGS, *vocabulary(**SHOP)], max_positions=1024)
"""3 layers of width 96, contexts of at most 1,024 words."""
