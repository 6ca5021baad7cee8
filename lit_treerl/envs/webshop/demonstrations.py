"""Episodes of the scripted shopper, as rows to learn from."""

from __future__ import annotations

from typing import Any

from lit_treerl.envs.webshop.env import WebShop
from lit_treerl.envs.webshop.shopper import Shopper
from lit_treerl.trees.task import Task


def shopping_episode(env: WebShop, task: Task, shopper: Shopper | None = None) -> dict[str, Any]:
    """Let a shopper play one task.

    Args:
        env: where it shops; its prompts and observations become the row's.
        task: one of the shop's goals.
        shopper: a perfect one when None.

    Returns:
        ``{"id", "data_source", "question", "prompt", "turns": [{"action", "observation", "prompt"}], "reward",
        "score"}``, a demonstration; ``prompt`` of a turn is the fresh prompt after it, where the context is a window.
    """
    prompt, turns = env.reset(task), []
    shopper = shopper or Shopper(task.question, max_turns=env.max_turns, spaced=env.spaced)
    while True:
        text = shopper.turn(env.scene)
        result = env.step(text)
        turns.append({"action": text, "observation": result.observation + result.closing, "prompt": result.prompt})
        if result.done:
            break
    return {
        "id": task.id,
        "data_source": task.data_source,
        "question": task.question,
        "prompt": prompt,
        "turns": turns,
        "reward": result.reward,
        "score": result.info["score"],
    }
