"""EpisodeDataModule: demonstrations in, supervised packs out."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from lit_treerl.data.datamodule import TreeRolloutDataModule, find_tree_sampler, load
from lit_treerl.data.sources import TaskSource
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.packing import Episode, supervised_packs
from lit_treerl.policy_module import iteration_of
from lit_treerl.rollout.tokens import Tokens
from lit_treerl.settings import SettingsError


class EpisodeSource(ABC):
    """Where demonstrations come from, as rows of ``prompt`` (chat messages) and ``turns``."""

    @abstractmethod
    def load(self) -> list[dict[str, Any]]:
        """All rows."""


class JSONLEpisodes(EpisodeSource):
    """Episodes from a JSONL file; what ``lit-treerl predict`` writes can be read.

    Args:
        path: one object per line: ``{"prompt": [{"role", "content"}], "turns": [{"action", "observation"}]}``; a turn
            may have a ``prompt`` too, that takes the place of all before it.
        min_reward: leave out episodes whose ``reward`` is lower; null keeps all.
    """

    def __init__(self, path: str, min_reward: float | None = None) -> None:
        self.path, self.min_reward = path, min_reward

    def load(self) -> list[dict[str, Any]]:
        """All rows.

        Raises:
            FileNotFoundError: where there is no such file.
            ValueError: naming the line that is no episode, or where no episode is left.
        """
        if not Path(self.path).is_file():
            raise FileNotFoundError(f"there is no file {self.path}")
        with Path(self.path).open(encoding="utf-8") as file:
            read = [check_episode(line, f"{self.path}:{number}") for number, line in enumerate(file, 1) if line.strip()]
        rows = [row for row in read if row is not None]
        if not rows:
            raise ValueError(f"{self.path}: has no episodes")
        kept = [row for row in rows if self.min_reward is None or (row.get("reward") or 0.0) >= self.min_reward]
        if not kept:
            raise ValueError(f"{self.path}: none of {len(rows)} episodes has a reward of at least {self.min_reward}")
        return kept


class EmbeddedDemonstrations(EpisodeSource):
    """The noisy scripted agent in the embedded world, in other worlds than the tasks are from.

    Args:
        n: how many episodes.
        worlds: seeds of the worlds.
        seed: of questions and noise.
    """

    def __init__(self, n: int = 80_000, worlds: Sequence[int] = tuple(range(1000, 1008)), seed: int = 0) -> None:
        self.n, self.worlds, self.seed = n, worlds, seed

    def load(self) -> list[dict[str, Any]]:
        """All rows."""
        from lit_treerl.data.embedded.demonstrations import demonstrations

        return list(demonstrations(self.worlds, self.n, self.seed))


def check_episode(line: str, where: str) -> dict[str, Any] | None:
    """Parse one episode; None for one that ``predict`` wrote without a single turn, or whose environment failed.

    Raises:
        ValueError: saying where and what is wrong.
    """
    try:
        row = json.loads(line)
    except ValueError as error:
        row, fault = None, f"it is no JSON: {error}"
    else:
        if isinstance(row, dict) and "status" in row and (row["status"] == "failed" or not row.get("turns")):
            return None
        fault = _fault(row)
    if fault:
        raise ValueError(
            f"{where}: not an episode, {fault}; each line needs "
            '{"prompt": [{"role", "content"}, ...], "turns": [{"action", "observation"}, ...]}'
        )
    return row


def _fault(row: Any) -> str | None:
    if not isinstance(row, dict):
        return f"it is a {type(row).__name__} and not an object"
    if not _are_texts(row.get("prompt"), "role", "content"):
        return "'prompt' must be a list of messages with 'role' and 'content' as strings"
    turns: Any = row.get("turns")
    if not _are_texts(turns, "action") or not _are_texts([{"observation": ""} | turn for turn in turns], "observation"):
        return "'turns' must be a list of turns with 'action' (and 'observation') as strings"
    if not all(_are_texts(turn["prompt"], "role", "content") for turn in turns if turn.get("prompt") is not None):
        return "a turn's 'prompt' must be a list of messages with 'role' and 'content' as strings"
    return None if any(turn["action"] for turn in turns) else "none of its actions has any text"


def _are_texts(items: Any, *keys: str) -> bool:
    """Whether ``items`` is a list, not empty, of objects with a string under each of ``keys``."""
    if not isinstance(items, list) or not items:
        return False
    return all(isinstance(item, dict) and all(isinstance(item.get(key), str) for key in keys) for item in items)


class EpisodeDataModule(TreeRolloutDataModule):
    """Streams supervised packs; validation and test roll the policy out on tasks as everywhere.

    Args:
        episodes: the demonstrations.
        batch_size: episodes per optimizer step.
        episodes_per_epoch: episodes between two validations; null takes all.
        observation_weight: loss weight of observation tokens (1 for action tokens).
        max_tokens_per_pack: most tokens in one forward pass.
        validation: source of validation tasks.
        test: source of test tasks.
        eval_batch_size: tasks rolled out at once in evaluation.
    """

    def __init__(
        self,
        episodes: EpisodeSource | None = None,
        batch_size: int = 64,
        episodes_per_epoch: int | None = None,
        observation_weight: float = 0.0,
        max_tokens_per_pack: int = 8192,
        validation: TaskSource | None = None,
        test: TaskSource | None = None,
        eval_batch_size: int = 256,
    ) -> None:
        super().__init__(validation=validation, test=test, eval_batch_size=eval_batch_size)
        self.episodes, self.batch_size, self.episodes_per_epoch = episodes, batch_size, episodes_per_epoch
        self.observation_weight, self.max_tokens_per_pack = observation_weight, max_tokens_per_pack
        self._rows: list[dict[str, Any]] = []

    def needed_splits(self, stage: str) -> tuple[str, ...]:
        """No training tasks."""
        return tuple(split for split in super().needed_splits(stage) if split != "train")

    def setup(self, stage: str) -> None:
        """Load tasks, and for ``fit`` the demonstrations."""
        super().setup(stage)
        if stage == "fit" and not self._rows:
            if self.episodes is None:
                raise SettingsError("data.episodes names no source of demonstrations, and `fit` needs one")
            self._rows = load(self.episodes, "data.episodes")

    def train_dataloader(self) -> DataLoader[Any]:
        """The epoch's packs, built step by step."""
        tokens = find_tree_sampler(self.trainer).tokens
        size = self.episodes_per_epoch or len(self._rows)
        rows = self.slice(iteration_of(self.trainer) * size, size)
        return DataLoader(_Packs(rows, tokens, self), batch_size=None)

    def slice(self, first: int, size: int) -> list[dict[str, Any]]:
        """Rows ``first`` to ``first + size`` of an endless stream: a fresh shuffle for every pass."""
        places = [divmod(first + i, len(self._rows)) for i in range(size)]
        return [self._rows[self.order(passed, len(self._rows))[place]] for passed, place in places]


class _Packs(IterableDataset[Pack]):
    def __init__(self, rows: Sequence[dict[str, Any]], tokens: Tokens, settings: EpisodeDataModule) -> None:
        self.rows, self.tokens, self.settings = rows, tokens, settings

    def __iter__(self) -> Iterator[Pack]:
        size = self.settings.batch_size
        for first in range(0, len(self.rows), size):
            batch = [part for row in self.rows[first : first + size] for part in encode_episode(row, self.tokens)]
            yield from supervised_packs(batch, self.settings.max_tokens_per_pack, self.settings.observation_weight)


def encode_episode(row: dict[str, Any], tokens: Tokens) -> list[Episode]:
    """Token ids of a demonstration, as a rollout would have them; a new part begins with every fresh prompt."""
    parts: list[tuple[list[int], list[tuple[list[int], list[int]]]]] = []
    prompt: Any = row["prompt"]
    for turn in row["turns"]:
        if prompt is not None:
            parts.append((tokens.prompt(prompt), []))
        prompt = turn.get("prompt")
        seen = turn.get("observation", "") if prompt is None else ""
        parts[-1][1].append((tokens.plain(turn["action"]), tokens.observation(seen, "", None)[0]))
    return list(parts)
