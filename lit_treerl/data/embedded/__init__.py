"""The embedded world: multi-hop questions over invented facts, and the makings of a tiny policy that can learn them."""

from lit_treerl.data.embedded.agents import Noise, perfect_action
from lit_treerl.data.embedded.demonstrations import demonstrations
from lit_treerl.data.embedded.policy import SEED_POLICY, init_policy, seed_policy_config
from lit_treerl.data.embedded.questions import embedded_tasks
from lit_treerl.data.embedded.tokenizer import build_tokenizer
from lit_treerl.data.embedded.world import World

__all__ = [
    "SEED_POLICY",
    "Noise",
    "World",
    "build_tokenizer",
    "demonstrations",
    "embedded_tasks",
    "init_policy",
    "perfect_action",
    "seed_policy_config",
]
