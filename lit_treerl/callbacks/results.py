"""ResultsWriter: the table and JSON of ``test`` and ``validate``, the JSONL of ``predict``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
from rich.console import Console
from rich.table import Table

from lit_treerl.policy_module import LitPolicy
from lit_treerl.rollout.episodes import GRADES

COLUMNS = {
    "em": "EM",
    "f1": "F1",
    "score": "score",
    "success_rate": "success",
    "reward": "reward",
    "turns": "turns",
    "tool_calls": "tool calls",
    "tokens": "tokens",
    "truncated": "truncated",
    "failed": "failed",
}
WIDTH = 120  # where the output is no terminal


def results_table(results: dict[str, dict[str, float]], title: str) -> Table:
    """Means per data source, the last row over all episodes."""
    columns = [name for name in COLUMNS if name not in GRADES or any(name in means for means in results.values())]
    table = Table("data source", "episodes", *(COLUMNS[name] for name in columns), title=title)
    for source, means in results.items():
        numbers = (f"{means[name]:.3f}" if name in means else "-" for name in columns)
        table.add_row(source, str(means["episodes"]), *numbers)
    return table


class ResultsWriter(L.Callback):
    """Writes ``test_results.json`` / ``validate_results.json`` and ``episodes.jsonl`` into the run folder."""

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Table and JSON of the test."""
        self._write(trainer, pl_module, "test")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Table and JSON of a validation that was asked for by itself."""
        if trainer.state.fn == "validate":
            self._write(trainer, pl_module, "validate")

    def on_predict_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: list[dict[str, Any]],
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Append the batch's episodes."""
        path = self._episodes_path(trainer)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if batch_idx == 0 else "a", encoding="utf-8") as file:
            for row in outputs:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def on_predict_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say where the episodes are."""
        if trainer.is_global_zero:
            print(f"episodes: {self._episodes_path(trainer)}")

    @staticmethod
    def _episodes_path(trainer: L.Trainer) -> Path:
        rank = f".rank{trainer.global_rank}" if trainer.world_size > 1 else ""
        return Path(trainer.log_dir or ".") / f"episodes{rank}.jsonl"

    @staticmethod
    def _write(trainer: L.Trainer, pl_module: L.LightningModule, name: str) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, LitPolicy)
        console = Console()
        Console(width=console.width if console.is_terminal else WIDTH).print(
            results_table(pl_module.last_evaluation, f"{name} results")
        )
        path = Path(trainer.log_dir or ".") / f"{name}_results.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(pl_module.last_evaluation, indent=2) + "\n", encoding="utf-8")
        print(f"results: {path}")
