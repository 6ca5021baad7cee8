"""Demonstrations for the seed policy's warm start: the noisy agent's episodes over several worlds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lit_treerl.data.embedded.agents import Noise, Search, noisy_episode
from lit_treerl.data.embedded.questions import draw_task
from lit_treerl.data.embedded.world import SPLITS, World
from lit_treerl.trees.seeding import derive_seed


def demonstrations(
    worlds: Sequence[int],
    n: int,
    seed: int = 0,
    search_factory: Callable[[list[dict[str, str]]], Search] | None = None,
    hops: Sequence[int] = (1, 2, 3, 4, 5, 6),
    noise: Noise | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield ``n`` episodes of the noisy agent over several worlds, all splits and all numbers of hops.

    Args:
        worlds: seeds of the worlds; leave the world of the tasks out.
        n: how many episodes.
        seed: of the questions and of the noise.
        search_factory: builds the search over a corpus; BM25, best two passages, by default.
        hops: numbers of hops to draw from; what is never demonstrated is hardly learned later.
        noise: how the agent errs.

    Yields:
        ``{"id", "data_source", "question", "prompt", "turns": [{"action", "observation"}, ...], "reward"}``.
    """
    rng = random.Random(derive_seed("embedded demonstrations", *worlds, seed))
    build = search_factory or bm25_search
    places = []
    for world_seed in worlds:
        world = World(world_seed)
        places.append((world, build(world.corpus())))
    for _ in range(n):
        world, search = rng.choice(places)
        task = draw_task(world, rng.choice(SPLITS), rng.choice(list(hops)), rng)
        yield noisy_episode(task, search, rng, noise)


def bm25_search(corpus: list[dict[str, str]], topk: int = 2) -> Search:
    """Search over ``corpus`` by BM25, as the environment does; returns the passages without their titles."""
    from lit_treerl.retrieval.bm25 import BM25Retriever

    retriever = BM25Retriever.from_rows(corpus, stopwords="none", backend="numpy", cache_size=100_000)
    retriever.setup()
    return lambda query: [passage.text for passage in retriever.search([query], topk)[0]]
