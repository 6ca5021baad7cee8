"""Gymnasium environments that speak, for the tests of their adapter."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces

CHARACTERS = "abcdefghijklmnopqrstuvwxyz "


class Thermometer(gymnasium.Env):
    """Warmer or colder, from a start drawn by the seed, until it is right; two rewards of a half."""

    metadata: ClassVar = {"render_modes": []}

    def __init__(self, form: str = "names", stubborn: bool = False, limit: int = 8) -> None:
        self.form, self.limit = form, limit
        names = form in ("names", "dict", "mask")
        self.action_space = spaces.Discrete(3, start=5) if names else spaces.Text(20, charset=CHARACTERS)
        self.observation_space = spaces.Text(40)
        self.handle = (i for i in range(3)) if stubborn else None  # a generator cannot be copied

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.at = (options or {}).get("at", int(self.np_random.integers(1, 4)))
        self.turns, self.found = 0, False
        return self.answer()

    def step(self, action):
        word = ["colder", "warmer", "stop"][action - 5] if self.form in ("names", "dict", "mask") else action
        self.turns += 1
        self.at += {"warmer": 1, "colder": -1}.get(word, 0)
        reward, self.found = 0.5 * (self.at == 0 and not self.found), self.found or self.at == 0
        right = word == "stop" and self.at == 0
        observation, info = self.answer()
        return observation, reward + 0.5 * right, word == "stop", self.turns >= self.limit, info

    def answer(self):
        text, info = f"It is {self.at} degrees.", {}
        if self.form == "offered":
            info = {"admissible_commands": ["colder", "warmer", "stop"]}
        if self.form == "mask":
            info = {"action_mask": [1, int(self.at < 3), 1]}
        return ({"text": text, "n": 3} if self.form == "dict" else text), info


def thermometer(**settings: Any) -> Thermometer:
    """A factory."""
    return Thermometer(**settings)


class Mute(Thermometer):
    """Numbers instead of text."""

    def answer(self):
        return self.at, {}


gymnasium.register("Thermometer-v0", entry_point=Thermometer)
