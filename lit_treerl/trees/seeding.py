"""Seeds that depend on what is sampled, never on when: the root of reproducible rollouts."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed from the text of ``parts``; equal parts give equal seeds on every machine.

    >>> derive_seed(0, "task-1", 2) == derive_seed(0, "task-1", 2)
    True
    """
    text = "\x1f".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
