"""The rollout loop: joins sampler, environments and search without a barrier between branches.

A branch's next action is submitted as soon as its environment has answered, and a tree's expansions begin as
soon as that tree's own branches are done. Seeds come from the task, tree, branch and turn alone, so that the
trees do not depend on the order in which things finish.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from lit_treerl.envs.base import Environment, EnvironmentFailure, StepResult
from lit_treerl.rollout.branch import Branch, Plant, naming
from lit_treerl.rollout.calls import EnvironmentCalls
from lit_treerl.rollout.tokens import Tokens
from lit_treerl.sampling.base import Completion, Request, Sampler, SamplingParams
from lit_treerl.settings import check_positive
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Message, Task
from lit_treerl.trees.tree import ROOT, RolloutGroup, Status, Tree

Judge = Callable[[Task, Tree], tuple[Sequence[float], Sequence[float]]]
"""Values and value-tree means of the states of a growing tree, by node."""


@dataclass(frozen=True)
class RolloutLimits:
    """Limits of length and how many environments may wait at once.

    Args:
        max_new_tokens: most tokens of one action.
        max_context: longest context plus action, in tokens; a branch that would overflow ends truncated.
        max_observation_tokens: longer observations are cut to this (their closing tag is kept) and counted.
        env_workers: threads for environments that wait for something outside.
        env_processes: worker processes for environments that ask for them.
        env_timeout_s: seconds after which a worker process that has not answered is replaced.
        env_recycle_after: episodes after which a worker process is replaced by a fresh one; never where None.
    """

    max_new_tokens: int = 500
    max_context: int = 4096
    max_observation_tokens: int | None = 500
    env_workers: int = 32
    env_processes: int = 4
    env_timeout_s: float = 300.0
    env_recycle_after: int | None = None

    def __post_init__(self) -> None:
        check_positive("rollout.limits.env_timeout_s", self.env_timeout_s)
        for name in ("max_new_tokens", "max_context", "env_workers", "env_processes"):
            if getattr(self, name) < 1:
                raise ValueError(f"rollout.limits.{name} must be at least 1, got {getattr(self, name)}")
        if self.env_recycle_after is not None and self.env_recycle_after < 1:
            raise ValueError(
                f"rollout.limits.env_recycle_after must be at least 1 or null, got {self.env_recycle_after}"
            )
        if self.max_new_tokens >= self.max_context:
            raise ValueError(
                f"rollout.limits.max_new_tokens ({self.max_new_tokens}) must be below rollout.limits.max_context "
                f"({self.max_context}), else no prompt fits"
            )


class TreeGrower:
    """Grows the trees of a list of tasks.

    Args:
        sampler: started sampler.
        env: an environment that is set up; branches get spawns of it.
        tokens: the policy's tokens.
        search: what to expand.
        limits: limits of length.
        temperature: of the sampling, 0 for greedy.
        version: of the policy, kept with every node.
        seed: seeds of actions and draws are derived from it, the task, tree, branch and turn.
        on_leaf: called with 1 for every finished leaf, for a progress bar.
        judge: gives the values and means of a tree's states, for searches that draw by them.
        lockstep: all branches act, then all environments answer, in a fixed order: what other trainers do, for tests
            and comparisons. The trees are the same.
    """

    def __init__(
        self,
        sampler: Sampler,
        env: Environment,
        tokens: Tokens,
        search: TreeSearch,
        limits: RolloutLimits,
        *,
        temperature: float,
        version: int = 0,
        seed: int = 0,
        on_leaf: Callable[[int], object] = lambda _: None,
        judge: Judge | None = None,
        lockstep: bool = False,
    ) -> None:
        self.sampler, self.env, self.tokens, self.search, self.limits = sampler, env, tokens, search, limits
        self.params = SamplingParams(limits.max_new_tokens, temperature, tuple(env.stop))
        self.version, self.seed, self.on_leaf, self.judge = version, seed, on_leaf, judge
        self.lockstep = lockstep
        self._requests = 0
        self._acting: dict[int, Branch] = {}  # request id -> branch waiting for the sampler
        self._waiting: dict[Future[Any], Callable[[Future[Any]], None]] = {}  # for the environment -> what comes then
        self._answers: SimpleQueue[Future[Any]] = SimpleQueue()  # of those that wait: what is there, in order

    def grow(self, tasks: Sequence[Task], trees: Sequence[int]) -> list[RolloutGroup]:
        """Grow ``trees[i]`` trees of ``tasks[i]``; one group per task, in order.

        An error is raised at once: environments that still answer are not waited for, and the sampler drops what it
        had still to do, so that it can be used again.
        """
        planted: Counter[str] = Counter()  # a task that comes twice gets other trees, not the same again
        plants = []
        for task, count in zip(tasks, trees, strict=True):
            first = planted[task.id]
            plants.append([Plant(task, Tree(task.id, first + i, self.env.context)) for i in range(count)])
            planted[task.id] += count
        try:
            with EnvironmentCalls(self.env, self.limits.env_workers) as self._calls:
                for plant in (plant for group in plants for plant in group):
                    self._plant(plant)
                while self._acting or self._waiting:
                    self._work()
        except BaseException as error:
            self._abort(error)
            raise
        return [RolloutGroup(task, [p.tree for p in group]) for task, group in zip(tasks, plants, strict=True)]

    def _abort(self, error: BaseException) -> None:
        self._acting, self._waiting, self._answers = {}, {}, SimpleQueue()
        try:
            self.sampler.abort()
        except Exception as other:
            error.add_note(f"the sampler could not be stopped then: {type(other).__name__}: {other}")

    # ---- beginnings and ends of branches ----

    def _plant(self, plant: Plant) -> None:
        env = self.env.spawn()

        def reset() -> tuple[list[Message], Any]:
            return env.reset(plant.task), (env.snapshot() if self.search.expansions else None)

        self._ask(env, reset, lambda future: self._planted(plant, env, future))

    def _planted(self, plant: Plant, env: Environment, future: Future[tuple[list[Message], Any]]) -> None:
        try:
            with naming(plant.task, "wrote the prompt"):
                messages, snapshot = future.result()
        except EnvironmentFailure as failure:
            plant.tree.add_root([])
            plant.tree.status[ROOT] = Status.FAILED
            plant.tree.info[ROOT] = {"error": str(failure)}
            return
        plant.tree.add_root(self.tokens.prompt(messages), snapshot)
        plant.tree.info[ROOT] = {"prompt": list(messages)}
        plant.alive = plant.branches = 1
        self._submit(Branch(plant, env, number=0))

    def _end(self, branch: Branch) -> None:
        plant, search = branch.plant, self.search
        plant.alive -= 1
        self.on_leaf(1)
        if plant.alive:
            return
        plant.canonical()
        rng = random.Random(derive_seed(self.seed, "draw", plant.task.id, plant.tree.index, plant.rounds))
        if plant.rounds < search.rounds and search.expansions and len(plant.tree) > 1:
            plant.rounds += 1
            self._expand(plant, self._draw(plant, rng))
        else:
            search.prune(plant.tree, rng)
            plant.tree.drop_snapshots()

    def _draw(self, plant: Plant, rng: random.Random) -> list[int]:
        search = self.search
        if not search.uses_values:
            return search.draw_nodes(plant.tree, search.expansions, rng)
        if self.judge is None:
            raise ValueError(f"search.draw {search.draw!r} needs a critic to judge states")
        values, means = self.judge(plant.task, plant.tree)
        return search.draw_nodes(plant.tree, search.expansions, rng, values, means)

    def _expand(self, plant: Plant, nodes: Sequence[int]) -> None:
        plant.alive = len(nodes)
        forks = []
        for node in nodes:
            snapshot = plant.tree.snapshot[node]
            turn = plant.tree.depth(node)
            forks.append(Branch(plant, self.env.spawn(), plant.branches, node, turn, fork=snapshot, forked=True))
            plant.branches += 1
        for fork in forks:
            self._submit(fork)

    # ---- the loop ----

    def _submit(self, branch: Branch) -> None:
        context = branch.plant.tree.context_ids(branch.node)
        if len(context) + self.params.max_new_tokens > self.limits.max_context:
            self._ask(branch.env, branch.truncate, lambda future: self._truncated(branch, future))
            return
        plant = branch.plant
        seed = derive_seed(self.seed, "action", plant.task.id, plant.tree.index, branch.number, branch.turn)
        self._requests += 1
        self._acting[self._requests] = branch
        self.sampler.submit(Request(self._requests, context, self.params, seed, self._priority(branch)))

    def _priority(self, branch: Branch) -> int:
        """Branches with the most turns still before their tree go first, so that no tree is left over at the end."""
        rounds = (self.search.rounds if self.search.expansions else 0) - branch.plant.rounds
        return branch.turn - (self.env.max_turns or 0) * rounds

    def _work(self) -> None:
        for completion in self._completions():
            self._act(self._acting.pop(completion.id), completion)
        for future in self._answered_calls():
            self._waiting.pop(future)(future)

    def _completions(self) -> list[Completion]:
        if not self.lockstep:
            return self.sampler.poll(self._answer_is_there) if self._acting else []
        found: list[Completion] = []
        while len(found) < len(self._acting):
            found += self.sampler.poll()
        return sorted(found, key=lambda completion: completion.id)

    def _answer_is_there(self) -> bool:
        return not self._answers.empty()

    def _answered_calls(self) -> list[Future[Any]]:
        """Calls that environments have answered; waits for one only when the sampler has nothing to do."""
        if self.lockstep:
            wait(self._waiting)
            return list(self._waiting)
        found = [self._answers.get()] if self._waiting and not self._acting else []
        return found + [self._answers.get() for _ in range(self._answers.qsize())]

    def _ask(self, env: Environment, call: Callable[[], Any], then: Callable[[Future[Any]], None]) -> None:
        """Have an environment do something, and go on with what came of it."""
        future = self._calls.submit(env, call)
        if self.env.runs_in == "caller":
            then(future)
        else:
            self._waiting[future] = then
            future.add_done_callback(self._answers.put)

    def _act(self, branch: Branch, completion: Completion) -> None:
        plant = branch.plant
        node = plant.tree.add_action(
            branch.node, completion.ids, completion.logprobs, self.version, natural=not branch.forked
        )
        plant.origin.append((branch.number, branch.turn))
        text = self.tokens.decode(completion.ids)
        plant.tree.info[node] = {"action": text, "finish_reason": completion.finish_reason}
        keep = bool(self.search.expansions)
        self._ask(branch.env, lambda: branch.act(text, keep), lambda future: self._answered(branch, node, future))

    def _answered(self, branch: Branch, node: int, future: Future[tuple[StepResult, Any]]) -> None:
        tree, task = branch.plant.tree, branch.plant.task
        seen = tree.info[node]
        try:
            with naming(task, f"answered turn {branch.turn + 1}"):
                result, snapshot = future.result()
        except EnvironmentFailure as failure:
            tree.observe(node, status=Status.FAILED, info=seen | {"error": str(failure)})
            self._end(branch)
            return
        ids, cut = self._observation_ids(result)
        fresh = {} if result.prompt is None or result.done else {"prompt": list(result.prompt)}
        tree.observe(
            node,
            ids,
            action_key=result.action_key,
            reward=result.reward,
            status=Status.TERMINAL if result.done else Status.OPEN,
            info=seen
            | result.info
            | {"observation": result.observation + result.closing, "observation_cut": cut}
            | fresh,
            snapshot=snapshot,
        )
        if result.done:
            self._end(branch)
            return
        branch.node, branch.turn = node, branch.turn + 1
        self._submit(branch)

    def _truncated(self, branch: Branch, future: Future[StepResult]) -> None:
        tree, node = branch.plant.tree, branch.node
        try:
            with naming(branch.plant.task, f"truncated turn {branch.turn}"):
                branch.truncated(future.result())
        except EnvironmentFailure as failure:
            tree.status[node] = Status.FAILED
            tree.info[node]["error"] = str(failure)
        self._end(branch)

    def _observation_ids(self, result: StepResult) -> tuple[list[int], bool]:
        if result.done:
            return [], False
        if result.prompt is not None:
            return self.tokens.prompt(result.prompt), False
        return self.tokens.observation(result.observation, result.closing, self.limits.max_observation_tokens)
