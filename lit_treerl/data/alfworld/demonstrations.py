"""Demonstrations for ALFWorld's warm start: a scripted agent that errs on purpose, in games that are no tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_treerl.data.alfworld_agents import TREATMENTS, HouseholdAgent, kind_of
from lit_treerl.data.alfworld_tasks import AlfworldTasks
from lit_treerl.data.episodes import EpisodeSource
from lit_treerl.envs.alfworld.env import ALFWorld
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task


@dataclass(frozen=True)
class HouseholdNoise:
    """How often the agent errs.

    The defaults leave reinforcement learning room: what is likeliest where a thing has to be cleaned, heated or cooled
    is to bring it as it is.

    Attributes:
        untreated: it forgets to clean, heat or cool.
        confused: it does another of the three.
        overlooked: it does not notice a thing that it sees.
        misplaced: it brings the thing to another receptacle than the task says.
    """

    untreated: float = 0.45
    confused: float = 0.25
    overlooked: float = 0.1
    misplaced: float = 0.15


class NoisyAgent(HouseholdAgent):
    """The scripted agent with noise.

    Args:
        task_type: as of the agent.
        params: as of the agent.
        noise: how it errs.
        rng: draws the errors.
    """

    def __init__(self, task_type: str, params: Mapping[str, str], noise: HouseholdNoise, rng: random.Random) -> None:
        super().__init__(task_type, params)
        self.thought = "search"
        self.noise, self.errs = noise, rng
        self.needed = 2 if task_type == "pick_two_obj_and_place" else 1
        if self.verb:
            drawn = rng.random()
            others = [treatment for treatment in TREATMENTS.values() if treatment[0] != self.verb]
            if drawn < noise.untreated:
                self.verb = self.appliance = ""
            elif drawn < noise.untreated + noise.confused:
                self.verb, self.appliance = rng.choice(others)

    def act(self, text: str, commands: Sequence[str]) -> str:
        """The next command; ``thought`` tells what it is for."""
        command = super().act(text, commands)
        self.thought = self._purpose(command)
        return command

    def _next(self, commands: set[str]) -> str:
        return "look" if len(self._placed) >= self.needed else super()._next(commands)

    def _purpose(self, command: str) -> str:
        verb = command.partition(" ")[0]
        if verb == "look":
            return "done"
        if verb in ("take", "move", "use"):
            return {"take": "fetch", "move": "bring", "use": "light"}[verb]
        if not self._held:
            return "fetch" if self._target() else "search"
        if self.lamp:
            return "light" if self._knows(self.lamp) else "search"
        return self.verb if self.verb and (not self._treated or verb == self.verb) else "bring"

    def _target(self) -> bool:
        return any(kind_of(thing) == self.object and thing not in self._placed for thing in self._where)

    def _knows(self, kind: str) -> bool:
        return any(kind_of(thing) == kind for thing in self._where)

    def _look(self, text: str, commands: Sequence[str]) -> None:
        before = dict(self._where)
        super()._look(text, commands)
        for thing in [thing for thing in self._where if thing not in before]:
            if self.errs.random() < self.noise.overlooked:
                del self._where[thing]
        if not self._goal and self._held and self.errs.random() < self.noise.misplaced:
            self._goal = self.errs.choice(self._order)


def household_episode(
    env: ALFWorld, task: Task, noise: HouseholdNoise, rng: random.Random, patience: int = 1
) -> dict[str, Any]:
    """Let the noisy agent play a task; returns an episode row.

    Args:
        env: an environment that is set up, in the ``growing`` style.
        task: one of its tasks.
        noise: how the agent errs.
        rng: draws the errors.
        patience: so many turns after the agent believes that it is done, wrongly, the row ends.
    """
    prompt, turns = env.reset(task), []
    agent = NoisyAgent(task.extra["task_type"], task.extra["params"], noise, rng)
    idle, reward = 0, 0.0
    while idle < patience:
        scene = env.scene
        command = agent.act(scene.text, scene.commands)
        result = env.step(text := f"<think> {agent.thought} </think> <action> {command} </action>")
        turns.append({"action": text, "observation": result.observation + result.closing})
        idle += agent.thought == "done"
        reward += result.reward
        if result.done:
            break
    row = {"id": task.id, "data_source": task.data_source, "question": task.question}
    return row | {"prompt": prompt, "turns": turns, "reward": reward}


class AlfworldDemonstrations(EpisodeSource):
    """The noisy scripted agent in generated games of training rooms, other games than the tasks.

    Args:
        env: the environment, as it is trained in; its texts become the rows'.
        games: source of the games; every game is played equally often.
        n: how many episodes.
        seed: of the noise.
        noise: how the agent errs; the defaults of :class:`HouseholdNoise` when None.
    """

    def __init__(
        self, env: ALFWorld, games: AlfworldTasks, n: int = 12_000, seed: int = 0, noise: HouseholdNoise | None = None
    ) -> None:
        self.env, self.games, self.n, self.seed, self.noise = env, games, n, seed, noise or HouseholdNoise()

    def load(self) -> list[dict[str, Any]]:
        """All rows; takes some ten milliseconds each."""
        return list(self.rows())

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row after the other, a game's together, for the engine remembers the game that it is in."""
        tasks = self.games.load()
        env = self.env.spawn()
        assert isinstance(env, ALFWorld)
        env.setup()
        for number in range(self.n):
            task = tasks[number * len(tasks) // self.n]
            rng = random.Random(derive_seed("alfworld demonstrations", self.seed, task.id, number))
            yield household_episode(env, task, self.noise, rng)
