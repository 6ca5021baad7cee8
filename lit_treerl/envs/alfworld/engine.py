"""All worlds of a process: states by game and path, reached through the one library that the process has."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lit_treerl.envs.alfworld.downward import Downward, library
from lit_treerl.envs.alfworld.facts import Facts, changed
from lit_treerl.envs.alfworld.game import Game
from lit_treerl.envs.alfworld.translation import fact

Steps = tuple[int, ...]
"""Operators from the beginning of a game to a state."""

KEPT_GAMES = 32  # translated games in memory, about a megabyte each
KEPT_STATES = 2000  # of the loaded game


@dataclass
class State:
    """A state of the loaded game; ``number`` is the library's."""

    number: int
    facts: Facts
    won: bool
    score: float
    commands: dict[str, int] | None = None  # operator by command
    text: str | None = None


class Engine:
    """Answers about any state of any game; several environments may ask in turn.

    The library holds one game. Asking about another loads that one, and its states are reached again by doing what led
    to them; nothing is ever planned. States of the loaded game are kept, so going back within a game costs nothing.

    Args:
        cache: folder of translations.
    """

    def __init__(self, cache: str | Path | None = None) -> None:
        self._cache = cache
        self._library: Downward = library()
        self._games: OrderedDict[str, Game] = OrderedDict()
        self._states: dict[Steps, State] = {}

    def text(self, file: str, path: Steps) -> str:
        """What is seen in a state: the introduction, or what the last action did."""
        with self._library.lock:
            state = self._state(file, path)
            if state.text is None:
                game, start, binding = self._games[file], "#intro#", {}
                if path:
                    self.commands(file, path[:-1])  # the last action must have been met
                    last = game.actions[path[-1]]
                    start, binding = last.feedback, last.binding
                state.text = game.grammar.text(start, game.setting(state.facts), binding)
            return state.text

    def commands(self, file: str, path: Steps) -> dict[str, int]:
        """The operator of every command that can be done in a state."""
        with self._library.lock:
            state = self._state(file, path)
            if state.commands is None:
                state.commands = {}
                for operator in self._library.operators(state.number):
                    action = self._games[file].action(operator, state.facts)
                    state.commands.setdefault(action.command, operator.id)  # several would do the same
            return state.commands

    def standing(self, file: str, path: Steps) -> tuple[bool, float]:
        """Whether the game is won in a state, and the share of its goal's conditions that are met."""
        with self._library.lock:
            state = self._state(file, path)
            return state.won, state.score

    def _state(self, file: str, path: Steps) -> State:
        game = self._load(file)
        known = len(path)
        while path[:known] not in self._states:
            known -= 1
        state = self._states[path[:known]]
        for end in range(known, len(path)):
            state = self._states[path[: end + 1]] = self._after(game, state, path[end])
        return state

    def _load(self, file: str) -> Game:
        game = self._games.get(file)
        if game is None:
            game = self._games[file] = Game(file, self._cache)
            if len(self._games) > KEPT_GAMES:
                self._games.popitem(last=False)
        self._games.move_to_end(file)
        if self._library.loaded_for is not game or len(self._states) > KEPT_STATES:
            number = self._library.load(game.translation.sas, game)
            self._states = {(): self._new(game, number, game.translation.facts)}
        return game

    def _after(self, game: Game, state: State, operator: int) -> State:
        effects = game.effects.get(operator)
        if effects is None:
            effects = [fact(atom) for atom in self._library.effects(state.number, operator)]
            game.effects[operator] = effects
        return self._new(game, self._library.apply(state.number, operator), changed(state.facts, effects))

    def _new(self, game: Game, number: int, facts: Facts) -> State:
        won = self._library.won(number)
        return State(number, facts, won, game.goal.score(facts) if game.goal else float(won))


@lru_cache(maxsize=1)
def shared_engine() -> Engine:
    """The engine of this process."""
    return Engine()
