"""What the study compares: arms, regimes, and the settings that make them equal in tokens and updates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lit_treerl.trees.search import TreeSearch

Kind = Literal["chains", "trees", "shared_trees"]

APVT = ("--model.value_tree", "ValueTree", "--model.value_tree.half_life", "8")
CRITIC = ("--model.critic.lr", "6e-4", "--model.critic.optimizer.betas", "[0.9,0.99]")
# Chosen for each main arm from 3e-4, 6e-4 and 1.2e-3 by the mean validation EM of two runs (docs/study.md); 6e-4 in all
# shipped configs, and 3e-4 for chain GRPO, whose other arms follow it.
GRPO = ("--model.actor_lr", "3e-4")
MEAN = ("--model.algorithm.baseline", "running_mean")
FROM_CRITIC = ("--model.algorithm.baseline", "critic", *CRITIC)
FROM_APVT = ("--model.algorithm.baseline", "apvt", *APVT)
PUBLISHED = ("--model.algorithm.normalisation", "group_std", "--model.algorithm.singletons", "published")
EDGE = ("--model.algorithm.credit", "edge", "--model.update.token_count", "once")
WARMUP = ("--warmup.iterations", "6", "--warmup.threshold", "0.3")


@dataclass(frozen=True)
class Arm:
    """One method: a shipped config and what is changed in it.

    Args:
        name: of the arm.
        config: file in configs/, without its ending.
        about: what it is, in one line.
        overrides: command-line options.
        kind: which of a regime's searches it uses.
    """

    name: str
    config: str
    about: str
    overrides: tuple[str, ...] = ()
    kind: Kind = "chains"


def _tree_ppo(name: str, about: str, *overrides: str) -> Arm:
    return Arm(name, "tree_ppo", about, ("--warmup.iterations", "0", *overrides), "shared_trees")


def _arms() -> list[Arm]:
    trees = "trees"
    return [
        Arm("grpo", "grpo", "chains against their task's mean", GRPO),
        Arm("ppo", "ppo", "chains, GAE across turns, a critic"),
        Arm("tree_grpo", "tree_grpo", "trees, both levels", kind=trees),
        Arm(
            "tree_grpo_budget",
            "tree_grpo",
            "trees, shared out by critic and value tree",
            ("--budget", "CriticGuidedBudget", "--budget.sharpness", "2", *APVT, *CRITIC),
            "shared_trees",
        ),
        _tree_ppo("tree_ppo", "TreePPO (reconstruction) on trees: value tree, budget"),
        _tree_ppo("no_apvt", "TreePPO without the value tree", "--model.value_tree", "null"),
        _tree_ppo("uniform_budget", "TreePPO, the same rollouts for each task", "--budget", "UniformBudget"),
        _tree_ppo("no_decay", "TreePPO, old returns count fully", "--model.value_tree.half_life", "null"),
        _tree_ppo("warmup", "TreePPO after critic warm-up", *WARMUP),
        _tree_ppo("tree_ppo_once", "TreePPO, each token counted once", "--model.update.token_count", "once"),
        Arm("tree_ppo_chains", "tree_ppo", "TreePPO on chains after critic warm-up", WARMUP),
        Arm("grpo_mean", "grpo", "GRPO, baseline shrunken to a running mean", (*GRPO, *MEAN)),
        Arm("tree_grpo_mean", "tree_grpo", "Tree-GRPO, baselines shrunken to a running mean", MEAN, trees),
        Arm("grpo_critic", "grpo", "GRPO, baseline shrunken to a critic's value", (*GRPO, *FROM_CRITIC)),
        Arm("tree_grpo_critic", "tree_grpo", "Tree-GRPO, baselines shrunken to a critic's value", FROM_CRITIC, trees),
        Arm("grpo_apvt", "grpo", "GRPO, baseline shrunken to the value tree's mean", (*GRPO, *FROM_APVT)),
        Arm("tree_grpo_apvt", "tree_grpo", "Tree-GRPO, baselines shrunken to the value tree's mean", FROM_APVT, trees),
        Arm("tree_grpo_edge", "tree_grpo", "trees, credit on edges, each token once", EDGE, trees),
        Arm("tree_grpo_edge_mean", "tree_grpo", "the same over a running mean", (*EDGE, *MEAN), trees),
        Arm("grpo_published", "grpo", "GRPO with the group's std, as published", (*GRPO, *PUBLISHED)),
        Arm("tree_grpo_published", "tree_grpo", "Tree-GRPO with the groups' std, as published", PUBLISHED, trees),
    ]


ARMS = {arm.name: arm for arm in _arms()}
MAIN = ("grpo", "ppo", "tree_grpo", "tree_grpo_budget", "tree_ppo")
ABLATIONS = ("no_apvt", "uniform_budget", "no_decay", "warmup")


@dataclass(frozen=True)
class Regime:
    """A kind of task and a budget of rollouts.

    Args:
        name: of the regime.
        about: what it is, in one line.
        tasks: of one iteration, for chains.
        turns: mean turns of an episode, for the expected cost of forks.
        searches: by the kind of arm.
        overrides: command-line options.
        overlay: config on top of the arm's own.
        held_out: options of validation and test.
        rates: learning rates of arms for which this regime's grid chose another than the default regime's.
    """

    name: str
    about: str
    tasks: int
    turns: float
    searches: dict[Kind, TreeSearch] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    overlay: str | None = None
    held_out: tuple[str, ...] = ("--data.validation.n", "200", "--data.test.n", "500")
    rates: dict[str, str] = field(default_factory=dict)

    def tasks_of(self, kind: Kind) -> int:
        """Tasks of one iteration at which an arm's expected tokens are those of the chains."""
        chains = self.tasks * self.searches["chains"].expected_chains(self.turns)
        return round(chains / self.searches[kind].expected_chains(self.turns))


FOUR, SIX = TreeSearch(4, 0), TreeSearch(2, 2, 1)
# The seed policy cannot read more than the 2 passages a search that it learned from: with 3 its EM is 0.
LONG = ("--data.train.hops", "[4,5,6]", "--data.validation.hops", "[4,5,6]", "--data.test.hops", "[4,5,6]")
LONG += ("--env.max_turns", "10")
# Two passes of chains over the questions are two iterations, so each comes about seven times in a run.
REPEAT = ("--data.train.n", "64")
# A wrong search cannot be made good within the turns of the longest questions.
DEAD_ENDS = (*LONG[:-1], "7", "--data.train.n", "52")
REGIMES = {
    regime.name: regime
    for regime in (
        Regime("default", "2 to 6 hops", 32, 5, {"chains": FOUR, "trees": SIX, "shared_trees": SIX}),
        Regime(
            "low",
            "2 to 6 hops, 2 chains a task",
            64,
            5,
            # A budget hands out trees and every task gets one, so a mean of one tree could not be moved; 2 trees of 2
            # leaves are the cheapest search with forks that can (3.2 chains a task, so fewer tasks).
            {"chains": TreeSearch(2, 0), "trees": TreeSearch(1, 2, 1), "shared_trees": TreeSearch(2, 1, 1)},
        ),
        Regime(
            "long",
            "4 to 6 hops, up to 10 turns",
            26,
            6,
            {"chains": FOUR, "trees": SIX, "shared_trees": SIX},
            LONG,
        ),
        Regime(
            "repeat",
            "2 to 6 hops, the same 64 questions again and again",
            32,
            5,
            {"chains": FOUR, "trees": SIX, "shared_trees": SIX},
            REPEAT,
        ),
        Regime(
            "dead_ends",
            "4 to 6 hops, up to 7 turns, the same 52 questions again and again",
            26,
            6,
            {"chains": FOUR, "trees": SIX, "shared_trees": SIX},
            DEAD_ENDS,
            rates={"grpo": "6e-4"},
        ),
        Regime(
            "alfworld",
            "generated games of small rooms, tested in rooms held out",
            32,
            11,
            {"chains": FOUR, "trees": SIX, "shared_trees": SIX},
            overlay="configs/env/alfworld.yaml",
            held_out=("--data.validation.n", "120", "--data.test.n", "300"),
        ),
        Regime(
            "webshop",
            "a generated shop, tested on other goals",
            32,
            6,
            {"chains": FOUR, "trees": SIX, "shared_trees": SIX},
            overlay="configs/env/webshop.yaml",
            held_out=("--data.validation.limit", "150", "--data.test.limit", "300"),
        ),
    )
}


def settings(arm: Arm, regime: Regime, seed: int, tokens: int) -> list[str]:
    """Command-line options of one run, the same for fit, validate and test; the config is relative to the project."""
    search = regime.searches[arm.kind]
    return [
        *("--config", f"configs/{arm.config}.yaml", *(("--config", regime.overlay) if regime.overlay else ())),
        *("--seed_everything", str(seed), "--threads", "1"),
        *("--search.trees", str(search.trees), "--search.expansions", str(search.expansions)),
        *("--data.tasks_per_iteration", str(regime.tasks_of(arm.kind)), *regime.held_out),
        *("--max_sampled_tokens", str(tokens)),
        *("--trainer.max_epochs", "10000", "--trainer.check_val_every_n_epoch", "5"),
        *("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"),
        *("--checkpoint.every_n_iterations", "10000"),  # that of the last iteration is always kept
        *regime.overrides,
        *arm.overrides,
        *(("--model.actor_lr", regime.rates[arm.name]) if arm.name in regime.rates else ()),
    ]
