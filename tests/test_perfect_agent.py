"""Retrieval is no ceiling: an agent that knows every word answers every embedded question through the real tool."""

import pytest

from lit_treerl.data.embedded import perfect_action
from lit_treerl.data.embedded_search import EmbeddedRetriever, EmbeddedTasks
from lit_treerl.envs.search_qa import SearchQA

LAYOUT = {"passage_format": "{text}", "joiner": " ", "lead": " ", "padding": " ", "trail": " ", "nothing_found": "none"}


@pytest.mark.parametrize(("split", "seed"), [("test", 0), ("test", 1), ("validation", 0)])
def test_the_perfect_agent_is_always_right(split, seed):
    env = SearchQA(EmbeddedRetriever(seed), topk=2, max_turns=6, **LAYOUT)
    env.setup()
    tasks = EmbeddedTasks(split, 240, hops=(1, 2, 3, 4, 5, 6), seed=seed).load()
    assert len({task.id for task in tasks}) == 240
    for task in tasks:
        env.reset(task)
        seen = []
        while not (result := env.step(perfect_action(task, seen))).done:
            seen.append(result.observation + result.closing)
        info = result.info
        assert (info["em"], info["f1"], info["success"], result.reward, info["format_valid"]) == (
            1.0,
            1.0,
            1.0,
            1.0,
            True,
        )
        assert info["turns"] == task.extra["hops"] + 1
    assert all(text.startswith(" <information> ") and text.endswith(" </information> ") for text in seen)
