"""Small trees for the tests: hand-written and random."""

from __future__ import annotations

import random

from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Status, Tree


def chain_tree(*rewards: float, task_id: str = "t", index: int = 0) -> Tree:
    """A tree of one-step leaves below the root, with these rewards."""
    tree = Tree(task_id, index=index)
    tree.add_root([1, 2])
    for reward in rewards:
        node = tree.add_action(0, [3], [-1.0], 0)
        tree.observe(node, reward=reward, status=Status.TERMINAL)
    return tree


def group(*trees: Tree, task_id: str = "t") -> RolloutGroup:
    return RolloutGroup(Task(task_id, "test", "?"), list(trees))


def random_tree(
    rng: random.Random,
    *,
    context: str = "growing",
    task_id: str = "t",
    index: int = 0,
    prompt: list[int] | None = None,
    nodes: int = 7,
    vocab: int = 29,
    failures: float = 0.0,
) -> Tree:
    """A random arena: 1 to 3 action tokens and 0 to 3 observation tokens a node (1 to 3 in windows), random rewards."""

    def ids(least: int, most: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(rng.randint(least, most))]

    tree = Tree(task_id, index=index, context=context)  # type: ignore[arg-type]
    tree.add_root(prompt if prompt is not None else ids(1, 4))
    for _ in range(nodes):
        parent = rng.choice([n for n in range(len(tree)) if tree.status[n] is Status.OPEN])
        action = ids(1, 3)
        node = tree.add_action(parent, action, [-3 * rng.random() - 0.01 for _ in action], 0)
        tree.observe(node, ids(context == "window", 3), reward=rng.choice([0.0, 0.2, 1.0]))
    for leaf in tree.leaves():
        tree.status[leaf] = Status.FAILED if rng.random() < failures else Status.TERMINAL
    return tree


def act(
    tree: Tree, parent: int, key: str, reward: float = 0.0, status: Status = Status.OPEN, *, natural: bool = True
) -> int:
    """Add a node below ``parent`` whose executed action is ``key``; returns it."""
    node = tree.add_action(parent, [3], [-1.0], 0, natural=natural)
    tree.observe(node, action_key=key, reward=reward, status=status)
    return node


def keyed_groups(seed: int, tasks: int = 3, *, keys: str = "aAb ", failures: float = 0.25) -> list[RolloutGroup]:
    """Random groups whose actions' keys are drawn from ``keys``, so that prefixes meet; a blank is an INVALID one."""
    rng = random.Random(seed)
    groups = []
    for task in rng.choices(range(tasks), k=rng.randint(1, 3)):
        trees = [
            random_tree(rng, index=i, nodes=rng.randint(0, 8), failures=failures) for i in range(rng.randint(1, 3))
        ]
        for tree in trees:
            tree.action_key = ["", *rng.choices(keys, k=len(tree) - 1)]
        groups.append(RolloutGroup(Task(f"id{rng.random()}", "test", f"question {task}"), trees))
    return groups
