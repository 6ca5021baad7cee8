"""Rollouts for TRL: a ``rollout_func`` of several turns in an environment, by Transformers' ``generate``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.trl.job import World
from lit_treerl.envs.base import Environment
from lit_treerl.trees.task import Message, Task


@dataclass
class Episode:
    """An episode as TRL wants it: prompt, everything after it, and which tokens of that were sampled."""

    env: Environment
    prompt: list[int]
    completion: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    reward: float = 0.0
    done: bool = False

    @property
    def context(self) -> list[int]:
        """What the policy sees next."""
        return self.prompt + self.completion

    def add(self, ids: Sequence[int], sampled: bool) -> None:
        """Append tokens."""
        self.completion += ids
        self.mask += [int(sampled)] * len(ids)


class Rollouts:
    """The ``rollout_func`` of the embedded world: one completion for each prompt it is given.

    Unfinished episodes take each turn together, padded on the left, with the trainer's own model, as TRL's trainer
    generates single turns. Every stop string of the world is one token, so ``generate`` ends rows there by itself.

    Attributes:
        sampled: tokens sampled so far.
        seconds: time spent so far.
    """

    def __init__(self, world: World, tasks: Sequence[Task]) -> None:
        from transformers import GenerationConfig

        self.world, self.sampled, self.seconds = world, 0, 0.0
        self.tasks = {task.question: task for task in tasks}
        tokenizer = world.tokens.tokenizer
        stops = [tokenizer.encode(text, add_special_tokens=False) for text in world.env.stop]
        assert all(len(ids) == 1 for ids in stops)
        self.ends = [int(tokenizer.eos_token_id), *(ids[0] for ids in stops)]  # type: ignore[arg-type]
        self.pad = int(tokenizer.pad_token_id)  # type: ignore[arg-type]
        self.generation = GenerationConfig(
            max_new_tokens=world.limits.max_new_tokens,
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            eos_token_id=self.ends,
            pad_token_id=self.pad,
        )

    def __call__(self, prompts: Sequence[Sequence[Message]], trainer: Any) -> dict[str, list[Any]]:
        """Roll out; the fields TRL asks for, ``env_mask``, and the rewards for the reward function."""
        start = time.perf_counter()
        episodes = [self.begin(self.tasks[messages[-1]["content"]]) for messages in prompts]
        while unfinished := self.unfinished(episodes):
            for episode, action in zip(unfinished, self.act(trainer, unfinished), strict=True):
                self.step(episode, action)
        self.seconds += time.perf_counter() - start
        return {
            "prompt_ids": [episode.prompt for episode in episodes],
            "completion_ids": [episode.completion for episode in episodes],
            "logprobs": None,  # type: ignore[dict-item]  # needed for vLLM only
            "env_mask": [episode.mask for episode in episodes],
            "earned": [episode.reward for episode in episodes],
        }

    def begin(self, task: Task) -> Episode:
        """A new episode."""
        env = self.world.env.spawn()
        return Episode(env, self.world.tokens.prompt(env.reset(task)))

    def unfinished(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes that go on; those that would not fit end here."""
        limits = self.world.limits
        for episode in episodes:
            if not episode.done and len(episode.context) + limits.max_new_tokens > limits.max_context:
                episode.reward += episode.env.truncate().reward
                episode.done = True
        return [episode for episode in episodes if not episode.done]

    def step(self, episode: Episode, action: list[int]) -> None:
        """Let the environment answer."""
        episode.add(action, sampled=True)
        self.sampled += len(action)
        result = episode.env.step(self.world.tokens.decode(action))
        episode.reward, episode.done = episode.reward + result.reward, result.done
        if not result.done:
            limit = self.world.limits.max_observation_tokens
            seen, _ = self.world.tokens.observation(result.observation, result.closing, limit)
            episode.add(seen, sampled=False)

    def act(self, trainer: Any, episodes: Sequence[Episode]) -> list[list[int]]:
        """The next action of each episode."""
        from trl.models import unwrap_model_for_generation

        contexts = [torch.tensor(episode.context).flip(0) for episode in episodes]
        padded = torch.nn.utils.rnn.pad_sequence(contexts, batch_first=True, padding_value=self.pad).flip(1)
        lengths = torch.tensor([len(context) for context in contexts])
        attended = (torch.arange(padded.shape[1]) >= padded.shape[1] - lengths[:, None]).long()
        with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model, torch.no_grad():
            out = model.generate(input_ids=padded, attention_mask=attended, generation_config=self.generation)
        return [self.cut(row) for row in out[:, padded.shape[1] :].tolist()]

    def cut(self, row: list[int]) -> list[int]:
        """A generated row up to its first end, which belongs to it."""
        return row[: next((i for i, token in enumerate(row, 1) if token in self.ends), len(row))]


def reward(earned: Sequence[float], **_: Any) -> list[float | None]:
    """TRL's reward function: what the episodes earned in the environment."""
    return list(earned)
