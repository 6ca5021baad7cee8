"""What every sampler refuses before any work is done."""

from __future__ import annotations

from collections.abc import Collection

from lit_treerl.sampling.base import Request


def check_request(request: Request, *, max_context: int, vocab_size: int, in_flight: Collection[int]) -> None:
    """Raise ValueError when ``request`` cannot be sampled; the text names the request, the numbers and the limit."""
    prompt, params = request.prompt_ids, request.params
    where = f"request {request.id}"
    if not len(prompt):
        raise ValueError(f"{where}: the prompt is empty; give at least one token")
    if params.max_new_tokens < 1:
        raise ValueError(f"{where}: max_new_tokens is {params.max_new_tokens}; it must be at least 1")
    if params.temperature < 0:
        raise ValueError(f"{where}: temperature is {params.temperature}; it must be 0 (greedy) or more")
    if "" in params.stop:
        raise ValueError(f"{where}: a stop string is empty; every stop string needs at least one character")
    if len(prompt) + params.max_new_tokens > max_context:
        raise ValueError(
            f"{where}: a prompt of {len(prompt)} tokens plus max_new_tokens {params.max_new_tokens} exceeds"
            f" max_context {max_context}"
        )
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= vocab_size:
        raise ValueError(f"{where}: token ids span {low} to {high}, outside the vocabulary 0 to {vocab_size - 1}")
    if request.id in in_flight:
        raise ValueError(f"{where}: this id is still in flight; ids must differ among unfinished requests")


def check_drained(in_flight: int) -> None:
    """Raise RuntimeError when weights or prefixes would change under requests that are not finished."""
    if in_flight:
        raise RuntimeError(f"{in_flight} requests are in flight; poll until they are done before anything changes")


def eos_token_ids(generation_eos: int | list[int] | None, tokenizer_eos: int | None) -> frozenset[int]:
    """Every id that ends an action: those of the generation config and that of the tokenizer."""
    ids = generation_eos if isinstance(generation_eos, list) else [generation_eos]
    return frozenset(i for i in (*ids, tokenizer_eos) if i is not None)
