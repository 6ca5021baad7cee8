"""TreeSampler: owns sampler, environments, search and budget, and keeps the sampler's weights current."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import lightning as L

from lit_treerl.actor_critic import LitActorCritic
from lit_treerl.callbacks.budget_report import budget_numbers, difficulty_bins, log_histogram
from lit_treerl.envs.base import Environment, EnvironmentFailure
from lit_treerl.policies import load_tokenizer, policy_path
from lit_treerl.policy_module import LitPolicy, iteration_of
from lit_treerl.rollout.batches import TaskBatch
from lit_treerl.rollout.calls import EnvironmentCalls
from lit_treerl.rollout.costs import TreeCosts
from lit_treerl.rollout.env_processes import ProcessEnvironments
from lit_treerl.rollout.grower import Judge, RolloutLimits, TreeGrower
from lit_treerl.rollout.stats import first_error, rollout_stats
from lit_treerl.rollout.tokens import Tokens
from lit_treerl.sampling.auto import resolve_sampler
from lit_treerl.sampling.base import Sampler
from lit_treerl.settings import SettingsError
from lit_treerl.trees.budget import Budget, Outlook, UniformBudget
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Message, Task
from lit_treerl.trees.tree import RolloutGroup

if TYPE_CHECKING:
    from collections.abc import Iterator


def report_failures(groups: Sequence[RolloutGroup], failed: int, finished: int) -> None:
    """Warn of branches lost to external trouble.

    Raises:
        EnvironmentFailure: where no episode at all came through.
    """
    if failed and not finished:
        raise EnvironmentFailure(f"all {failed} episodes of an iteration failed, the first with: {first_error(groups)}")
    if failed:
        warnings.warn(
            f"{failed} episodes failed and are left out of training, the first with: {first_error(groups)}",
            stacklevel=2,
        )


@dataclass(frozen=True)
class RolloutConfig:
    """How rollouts are sampled, in training and in evaluation.

    Args:
        limits: limits of length.
        temperature: in training; the log-probs are those at this temperature.
        eval_temperature: in validation, test and predict; 0 is greedy.
        eval_samples: episodes per task in validation, test and predict.
    """

    limits: RolloutLimits = RolloutLimits()
    temperature: float = 1.0
    eval_temperature: float = 0.0
    eval_samples: int = 1

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"rollout.temperature must be above 0 in training, got {self.temperature}")
        if self.eval_temperature < 0 or self.eval_samples < 1:
            raise ValueError("rollout.eval_temperature must be at least 0 and rollout.eval_samples at least 1")


class TreeSampler(L.Callback):
    """Grows trees for training and chains for evaluation, with the same code.

    Args:
        env: environment of the tasks.
        search: what to expand in training.
        budget: how many trees each task gets.
        sampler: ``auto`` takes vLLM when it can be imported, else the Transformers sampler.
        rollout: limits and temperatures.
    """

    def __init__(
        self,
        env: Environment,
        search: TreeSearch | None = None,
        budget: Budget | None = None,
        sampler: Literal["auto"] | Sampler = "auto",
        rollout: RolloutConfig | None = None,
    ) -> None:
        self.env, self.search, self.budget = env, search or TreeSearch(), budget or UniformBudget()
        self.sampler, self.rollout = resolve_sampler(sampler), rollout or RolloutConfig()
        self.stats: dict[str, float] = {}
        self.costs = TreeCosts()
        self.seed = 0
        self._tokens: Tokens | None = None
        self._loaded: int | None = None  # version of the weights in the sampler

    # ---- life ----

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Set the environment up and start the sampler, after Lightning has set up its ranks."""
        assert isinstance(pl_module, LitPolicy)
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
        pl_module.temperature = self.rollout.temperature
        self._ask_for_critic(pl_module)
        try:
            self.budget.allocate([], self.search.trees)  # a dry run: it refuses what does not go together
        except ValueError as error:
            raise SettingsError(str(error)) from error
        if stage == "fit" and self.budget.uses_outlook and self.search.trees == 1:
            warnings.warn(
                "search.trees is 1: every task gets one tree, and the budget has nothing to hand out", stacklevel=2
            )
        if stage == "fit" and trainer.world_size > 1:
            raise SettingsError(
                "trainer.devices / trainer.num_nodes: training on several processes is not built yet; use 1 "
                "(test, validate and predict may use more)"
            )
        self._loaded = None  # a checkpoint may be loaded for this stage
        self._set_up_env()
        if self._tokens is not None:
            return
        tokenizer = load_tokenizer(pl_module.policy)
        self._tokens = Tokens(tokenizer)
        self.sampler.start(
            policy_path(pl_module.policy),
            tokenizer,
            max_context=self.rollout.limits.max_context,
            device=trainer.strategy.root_device,
            seed=self.seed + trainer.global_rank,
        )

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Close the environment; the next stage sets it up again."""
        self.env.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Close the environment: Lightning calls no teardown then, and a process that hangs would outlast the run."""
        self.env.close()

    @property
    def tokens(self) -> Tokens:
        """The policy's tokens."""
        assert self._tokens is not None, "the TreeSampler is not set up"
        return self._tokens

    def sync(self, module: LitPolicy) -> float:
        """Give the sampler the module's weights where they are newer; returns the seconds it took."""
        version, start = int(module.updates), time.perf_counter()
        if version != self._loaded:
            assert module.actor is not None
            self.sampler.load_weights(module.actor.named_weights(), version)
            self._loaded = version
        return time.perf_counter() - start

    # ---- training ----

    def collect(self, trainer: L.Trainer, module: LitPolicy, tasks: Sequence[Task]) -> list[RolloutGroup]:
        """Grow one iteration's trees with the current weights."""
        sync = self.sync(module)
        self.sampler.forget_prefixes()  # a resumed run has none of earlier iterations with the same weights
        start = time.perf_counter()
        trees = self.budget.allocate(tasks, self.search.trees, self._outlook(module, tasks))
        log_histogram(trainer, difficulty_bins(self.budget, trees))
        with self._bar(trainer, "rollouts", sum(trees) * self.search.leaves_per_tree) as on_leaf:
            judge = module.judge if isinstance(module, LitActorCritic) and self.search.uses_values else None
            grower = self._grower(self.search, module, self.rollout.temperature, iteration_of(trainer), on_leaf, judge)
            groups = grower.grow(tasks, trees)
        self.stats = (
            rollout_stats(groups, self.sampler.reset_counters())
            | budget_numbers(self.budget, trees)
            | {
                "time/sync": sync,
                "time/rollout": time.perf_counter() - start,
            }
        )
        report_failures(groups, int(self.stats["rollout/failed"]), int(self.stats["rollout/leaves"]))
        module.within_iteration = True  # not before: a run that stops for failures alone still saves what it learned
        self.costs.observe(groups)
        return groups

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log what the iteration's rollouts cost and brought."""
        pl_module.log_dict(self.stats)

    # ---- evaluation ----

    def evaluate(self, trainer: L.Trainer, module: LitPolicy, tasks: Sequence[Task]) -> list[RolloutGroup]:
        """Sample ``eval_samples`` chains of every task."""
        self.sync(module)
        chains = replace(self.search, trees=self.rollout.eval_samples, expansions=0, keep_leaves=None)
        trees = [chains.trees] * len(tasks)
        with self._bar(trainer, "episodes", sum(trees)) as on_leaf:
            grower = self._grower(chains, module, self.rollout.eval_temperature, "eval", on_leaf)
            groups = grower.grow(tasks, trees)
        self.sampler.reset_counters()
        return groups

    def on_validation_batch_start(self, trainer, pl_module: Any, batch: TaskBatch, batch_idx, dataloader_idx=0) -> None:
        """Attach the batch's episodes."""
        batch.groups = self.evaluate(trainer, pl_module, batch.tasks)

    def on_test_batch_start(self, trainer, pl_module: Any, batch: TaskBatch, batch_idx, dataloader_idx=0) -> None:
        """Attach the batch's episodes."""
        batch.groups = self.evaluate(trainer, pl_module, batch.tasks)

    def on_predict_batch_start(self, trainer, pl_module: Any, batch: TaskBatch, batch_idx, dataloader_idx=0) -> None:
        """Attach the batch's episodes."""
        batch.groups = self.evaluate(trainer, pl_module, batch.tasks)

    def state_dict(self) -> dict[str, Any]:
        """What episodes have cost, for budgets in tokens."""
        return {"costs": self.costs.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.costs.load_state_dict(state_dict["costs"])

    # ---- helpers ----

    def _set_up_env(self) -> None:
        if self.env.runs_in == "processes":
            limits = self.rollout.limits
            self.env = ProcessEnvironments(
                self.env, limits.env_processes, limits.env_timeout_s, limits.env_recycle_after
            )
        try:
            self.env.setup()
        except (ValueError, FileNotFoundError) as error:
            raise SettingsError(f"env: {error}") from error

    def _ask_for_critic(self, module: LitPolicy) -> None:
        key = "budget" if self.budget.uses_outlook else "search.draw" if self.search.uses_values else None
        if key and not isinstance(module, LitActorCritic):
            raise SettingsError(f"{key}: asks a critic, and a {type(module).__name__} has none; use LitTreeRL")
        if key and isinstance(module, LitActorCritic):
            module.critic_wanted = True
        if self.search.uses_means and getattr(module, "value_tree", None) is None:
            raise SettingsError("search.draw 'critic_gap' compares with a value tree: set model.value_tree")

    def _outlook(self, module: LitPolicy, tasks: Sequence[Task]) -> Outlook | None:
        if not self.budget.uses_outlook:
            return None
        assert isinstance(module, LitActorCritic)
        outlook = module.outlook(tasks, self._prompts(tasks))
        beliefs = [
            replace(belief, tokens=self.costs.expected(task)) for belief, task in zip(outlook.tasks, tasks, strict=True)
        ]
        return replace(outlook, tasks=beliefs)

    def _prompts(self, tasks: Sequence[Task]) -> list[list[int] | None]:
        """Token ids of the tasks' first prompts; None where the environment does not give one now."""
        with EnvironmentCalls(self.env, self.rollout.limits.env_workers) as calls:
            spawned = [(self.env.spawn(), task) for task in tasks]
            asked = [calls.submit(env, partial(env.reset, task)) for env, task in spawned]
            return [self._prompt(future) for future in asked]

    def _prompt(self, reset: Future[list[Message]]) -> list[int] | None:
        try:
            return self.tokens.prompt(reset.result())
        except EnvironmentFailure:
            return None

    def _grower(
        self,
        search: TreeSearch,
        module: LitPolicy,
        temperature: float,
        occasion: object,
        on_leaf: Callable,
        judge: Judge | None = None,
    ) -> TreeGrower:
        return TreeGrower(
            self.sampler,
            self.env,
            self.tokens,
            search,
            self.rollout.limits,
            temperature=temperature,
            version=int(module.updates),
            seed=derive_seed(self.seed, occasion),
            on_leaf=on_leaf,
            judge=judge,
        )

    @contextmanager
    def _bar(self, trainer: L.Trainer, what: str, total: int) -> Iterator[Callable[[int], object]]:
        from tqdm.auto import tqdm

        shown = getattr(trainer.progress_bar_callback, "is_enabled", False) and trainer.is_global_zero
        with tqdm(total=total, desc=what, leave=False, disable=not shown, dynamic_ncols=True) as progress:
            yield progress.update
