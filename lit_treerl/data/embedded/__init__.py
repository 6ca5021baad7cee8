"""The embedded world: multi-hop questions over invented facts, and the makings of a tiny policy that can learn them."""

from lit_treerl.data.embedded.agents import Noise, perfect_action
from lit_treerl.data.embedded.demonstrations import demonstrations
from lit_treerl.data.embedded.policy import POLICY, SEED_POLICY
from lit_treerl.data.embedded.questions import embedded_tasks
from lit_treerl.data.embedded.world import World

__all__ = [
    "POLICY",
    "SEED_POLICY",
    "Noise",
    "World",
    "demonstrations",
    "embedded_tasks",
    "perfect_action",
]
