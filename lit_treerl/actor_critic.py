"""LitActorCritic: a critic and a value tree beside the actor, for algorithms, budgets and searches that ask them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from lit_treerl.algorithms.advantages import counted_nodes
from lit_treerl.algorithms.base import Beliefs, Credit
from lit_treerl.algorithms.beliefs import finite
from lit_treerl.algorithms.value_loss import predicted_returns, value_loss
from lit_treerl.critic_building import build_critic, check_dropout
from lit_treerl.critic_training import (
    CriticConfig,
    Targets,
    credit_targets,
    measure,
    plan_value_packs,
    read_value_tree,
    state_targets,
    tree_values,
    value_tree_beliefs,
    with_others,
)
from lit_treerl.modeling.value_packs import ValuePack, prompt_packs, value_packs
from lit_treerl.optimizers import OptimizerConfig, build_optimizer, step_now
from lit_treerl.policy_module import ActorConfig, LitPolicy
from lit_treerl.settings import SettingsError
from lit_treerl.trees.budget import Outlook, TaskBelief
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Tree
from lit_treerl.trees.value_tree import ValueTree
from lit_treerl.update_stats import UpdateStats
from lit_treerl.warmup_trees import WarmupTrees

if TYPE_CHECKING:
    from lit_treerl.modeling.critic import Critic


MOMENTUM = 0.7  # share of the smoothed explained variance that one iteration leaves in place


class LitActorCritic(LitPolicy):
    """An actor, and where something wants it (``critic_wanted``) a critic with an optimizer of its own.

    Args:
        policy: Hugging Face model folder or hub name.
        actor_lr: learning rate of the actor.
        actor: how the actor is loaded.
        optimizer: AdamW and its schedule, of the actor.
        critic: how the critic is built and trained.
        value_tree: keeps the returns of earlier iterations by task and action prefix; none when null.

    Attributes:
        explained_variance: the critic's, of the latest fresh trees; nan before any.
        smoothed_variance: its exponential mean over iterations, by which a budget judges the critic: that of a single
            iteration of few tasks is noisy.
        warmup: trees for the critic while the actor rests; None where both learn.
    """

    def __init__(
        self,
        policy: str,
        actor_lr: float,
        actor: ActorConfig,
        optimizer: OptimizerConfig,
        critic: CriticConfig,
        value_tree: ValueTree | None,
    ) -> None:
        super().__init__(policy, actor_lr, actor, optimizer)
        self.critic_config, self.value_tree = critic, value_tree
        self.critic: Critic | None = None
        self.critic_wanted = False
        self.explained_variance = self.smoothed_variance = math.nan
        self.warmup: WarmupTrees | None = None
        self.stats = UpdateStats()

    def configure_model(self) -> None:
        """Load the actor, and the critic where it is wanted."""
        super().configure_model()
        assert self.actor is not None
        check_dropout(self.actor)
        if self.critic_wanted and self.critic is None:
            self.critic = build_critic(self.critic_config, self.actor, self.policy, self.actor_config)

    def configure_optimizers(self) -> Any:
        """One AdamW with its schedule for the actor, and one for the critic where there is one."""
        optimizers, schedules = super().configure_optimizers()
        if self.critic is not None:
            config = self.critic_config
            optimizer, schedule = build_optimizer(self.critic.trained(), config.lr, config.optimizer)
            optimizers, schedules = [*optimizers, optimizer], [*schedules, schedule]
        return optimizers, schedules

    # ---- beliefs and what the critic learns ----

    def beliefs(
        self, groups: Sequence[RolloutGroup], *, token_level: bool = False, others: bool = False
    ) -> list[list[Beliefs]]:
        """What critic and value tree say of the trees; the value tree learns of them."""
        beliefs = [[Beliefs()] * len(group.trees) for group in groups]
        if self.critic is not None:
            beliefs = self.critic_values(groups, token_level=token_level)
        if self.value_tree is not None:
            beliefs = value_tree_beliefs(groups, self.value_tree, int(self.updates), beliefs)
            beliefs = with_others(groups, self.value_tree, beliefs) if others else beliefs
        return beliefs

    def critic_values(self, groups: Sequence[RolloutGroup], *, token_level: bool = False) -> list[list[Beliefs]]:
        """The critic's values of all states of the trees."""
        packs = value_packs(groups, max_tokens=self.critic_config.max_tokens_per_pack, token_level=token_level)
        return tree_values(groups, packs, [self._predicted(pack) for pack in packs])

    def plan_values(
        self,
        groups: Sequence[RolloutGroup],
        credits: Sequence[Sequence[Credit]],
        beliefs: Sequence[Sequence[Beliefs]],
        iteration: int,
    ) -> list[ValuePack]:
        """Packs that the critic learns from, after measuring what it says of the fresh trees.

        Targets are the algorithm's; where it brings none, those of ``state_targets``.
        """
        if self.critic is None:
            return []
        config, rng = self.critic_config, random.Random(derive_seed("critic", iteration))
        plain = state_targets(groups, beliefs, config.weight_saturation)
        self._measured(measure(beliefs, plain))
        return plan_value_packs(groups, credit_targets(credits) or plain, credits, config, rng, self._outputs)

    def plan_warmup(self, groups: Sequence[RolloutGroup], iteration: int) -> list[ValuePack]:
        """Packs of an iteration in which the actor rests: of all trees of the warm-up but the held-out tasks'."""
        assert self.warmup is not None
        self.warmup.add(groups)
        if self.value_tree is not None:
            self.value_tree.add(groups, int(self.updates))
        known = self.warmup.trained
        config, rng = self.critic_config, random.Random(derive_seed("critic", iteration))
        config = replace(config, passes=self.warmup.passes, mini_batches=config.mini_batches * self.warmup.iterations)
        return plan_value_packs(known, self._warmup_targets(known), None, config, rng, self._outputs)

    def measure_warmup(self) -> float:
        """Explained variance on the warm-up's held-out tasks; nan where there is nothing to explain."""
        assert self.warmup is not None
        held = self.warmup.held
        self.smoothed_variance = math.nan  # the critic has learned from scratch since
        self._measured(measure(self.critic_values(held), self._warmup_targets(held)))
        return self.explained_variance

    def _measured(self, explained: float) -> None:
        self.explained_variance = explained
        if math.isnan(explained):
            return
        bounded = max(-1.0, explained)  # one wild iteration is not to outweigh all that follow
        before = bounded if math.isnan(self.smoothed_variance) else self.smoothed_variance
        self.smoothed_variance = MOMENTUM * before + (1 - MOMENTUM) * bounded

    def _warmup_targets(self, groups: Sequence[RolloutGroup]) -> Targets:
        beliefs = [[Beliefs()] * len(group.trees) for group in groups]
        if self.value_tree is not None:
            beliefs = read_value_tree(groups, self.value_tree, beliefs)
        return state_targets(groups, beliefs, self.critic_config.weight_saturation)

    @torch.no_grad()
    def _outputs(self, pack: ValuePack) -> torch.Tensor:
        """The critic's outputs [M], computed as in ``training_step``."""
        assert self.critic is not None
        on_device = pack.to(self.device)
        with self.forward_context():
            return self.critic.values(on_device.pack, on_device.token).cpu()

    def _predicted(self, pack: ValuePack) -> torch.Tensor:
        return predicted_returns(self._outputs(pack), self.critic_config.loss.kind)

    def forward_context(self) -> AbstractContextManager[Any]:
        """The trainer's precision, as in ``training_step``: else the ratios would not begin at 1."""
        return nullcontext() if self._trainer is None else self.trainer.precision_plugin.forward_context()

    # ---- what budget and search ask ----

    def outlook(self, tasks: Sequence[Task], prompts: Sequence[Sequence[int] | None]) -> Outlook:
        """What is believed of tasks before they are rolled out, from their prompts' token ids (None: unknown)."""
        values: list[float | None] = [None] * len(tasks)
        if self.critic is not None:
            known = [i for i, ids in enumerate(prompts) if ids]
            max_tokens = self.critic_config.max_tokens_per_pack
            for pack in prompt_packs([prompts[i] or [] for i in known], max_tokens=max_tokens):
                for places, value in zip(pack.places, self._predicted(pack).tolist(), strict=True):
                    for place in places:
                        values[known[place.group]] = value
        seen = [self.value_tree.task_value(task) if self.value_tree is not None else None for task in tasks]
        beliefs = [
            TaskBelief(value=value) if before is None else TaskBelief(before.count, before.mean, before.variance, value)
            for value, before in zip(values, seen, strict=True)
        ]
        return Outlook(beliefs, None if math.isnan(self.smoothed_variance) else self.smoothed_variance)

    def judge(self, task: Task, tree: Tree) -> tuple[list[float], list[float]]:
        """The critic's value and the value tree's mean (nan without one) of every state of a growing tree.

        No value is read, and nan given, of states that failures alone follow.

        Raises:
            ValueError: naming the task, where a value that was read is not finite: the critic has diverged.
        """
        group = RolloutGroup(task, [tree])
        (((belief,),)) = self.critic_values([group])
        assert belief.value is not None
        unknown, counted = [math.nan] * len(tree), counted_nodes(tree)
        finite(belief.value, tree, torch.tensor(counted), "the critic's value")
        values = [value if counts else math.nan for value, counts in zip(belief.value.tolist(), counted, strict=True)]
        means = unknown if self.value_tree is None else self.value_tree.beliefs(group)[0][0]
        return values, means

    # ---- training ----

    def learn_values(self, pack: ValuePack) -> None:
        """Accumulate one pack's gradient; step the critic's optimizer where the pack ends a step."""
        assert self.critic is not None
        assert pack.target is not None
        assert pack.weight is not None
        config = self.critic_config
        with self.critic.active():
            values = self.critic.values(pack.pack, pack.token)
            loss, metrics = value_loss(values, pack.target, pack.weight, pack.old, config.loss)
            self.manual_backward(loss)
        self.stats.critic.add(loss, metrics)
        if pack.step_end:
            optimizers: Any = self.optimizers()
            schedules: Any = self.lr_schedulers()
            norm = step_now(self.critic.trained(), optimizers[1], schedules[1], config.optimizer.max_grad_norm)
            self.stats.critic.add_step(norm)

    def iteration_values(self) -> dict[str, float]:
        """What the iteration's updates did."""
        out = self.stats.values()
        if self.critic is not None:
            out |= self.stats.critic_values() | {"train/explained_variance": self.explained_variance}
        if self.value_tree is not None:
            out |= {"apvt/nodes": float(len(self.value_tree)), "apvt/visits_mean": self.value_tree.visits_mean()}
        return out

    # ---- checkpoints ----

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the weights do not hold."""
        names = ("explained_variance", "smoothed_variance")
        checkpoint["critic"] = {name: getattr(self, name) for name in names}
        if self.value_tree is not None:
            checkpoint["value_tree"] = self.value_tree.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take it over again.

        Raises:
            SettingsError: where the checkpoint's run had a critic and this one has none or the other way round, or its
                value tree was built with other settings.
        """
        stored = any(name.startswith("critic.") for name in checkpoint["state_dict"])
        if stored != (self.critic is not None):
            had, has = ("a", "none") if stored else ("no", "one")
            raise SettingsError(
                f"ckpt_path: its run had {had} critic, and this one has {has}; "
                "use algorithm, budget, search and warmup of that run"
            )
        for name, value in checkpoint.get("critic", {}).items():
            setattr(self, name, value)
        if self.value_tree is not None and "value_tree" in checkpoint:
            try:
                self.value_tree.load_state_dict(checkpoint["value_tree"])
            except ValueError as error:
                raise SettingsError(f"ckpt_path: {error}") from error
