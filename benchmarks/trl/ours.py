"""Our side: ``lit-treerl fit`` on configs/grpo.yaml or configs/tree_grpo.yaml; the clock stands in validations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
import yaml

from benchmarks.trl.job import BETAS, CLIP, CONFIGS, DUAL_CLIP, STEPS, Clock, Job, Point
from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.metrics import ALL

NORMALISATION = {"group": "group_std", "batch": "batch", "none": "none"}


class Watch(L.Callback):
    """Notes time, tokens and exact match at every validation, and ends the run at the target.

    Args:
        out: file for what it noted.
        target: exact match.
    """

    def __init__(self, out: str, target: float) -> None:
        self.out, self.target, self.clock = Path(out), target, Clock()
        self.tokens = self.rollout = 0.0

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The first validation is over, the first rollouts come next."""
        self._note(trainer, pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """An iteration is over."""
        if not trainer.sanity_checking:
            self.clock.stop()
            sampler = next(c for c in trainer.callbacks if isinstance(c, TreeSampler))  # type: ignore[attr-defined]
            self.tokens += sampler.stats["rollout/sampled_tokens"]
            self.rollout += sampler.stats["time/rollout"]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Its examination is over."""
        if not trainer.sanity_checking:
            self._note(trainer, pl_module)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write it all down."""
        self.out.write_text(json.dumps(self.clock.points), encoding="utf-8")

    def _note(self, trainer: L.Trainer, module: Any) -> None:
        em = module.last_evaluation[ALL]["em"]
        self.clock.note(em, self.tokens, self.rollout)
        trainer.should_stop = em >= self.target
        self.clock.start()


def settings(job: Job, folder: Path) -> dict[str, Any]:
    """What changes of the config: the job's own settings, and the watch."""
    watch = {"class_path": "benchmarks.trl.ours.Watch", "init_args": {"out": str(folder / "points.json")}}
    watch["init_args"]["target"] = job.target  # type: ignore[index]
    model = {
        "actor_lr": job.lr,
        "algorithm": {"init_args": {"normalisation": NORMALISATION[job.scaling]}},
        "loss": {"clip_low": CLIP, "clip_high": CLIP, "dual_clip": DUAL_CLIP, "kl_coef": 0.0},
        "update": {"mini_batches": STEPS, "aggregation": "token_mean"},
        "optimizer": {"betas": list(BETAS), "weight_decay": 0.0, "max_grad_norm": 1.0},
    }
    return {
        "seed_everything": job.seed,
        "max_sampled_tokens": job.max_tokens,
        "model": {"init_args": model},
        "data": {
            "init_args": {
                "tasks_per_iteration": job.tasks,
                "validation": {"init_args": {"n": job.validation}},
            }
        },
        "trainer": {
            "accelerator": "cpu",
            "max_epochs": 1000,
            "check_val_every_n_epoch": 1,
            "enable_progress_bar": False,
            "default_root_dir": str(folder),
            "callbacks": [watch],
        },
    }


def run(job: Job, folder: Path) -> list[Point]:
    """Train until the target; one thread, as the config says."""
    from lit_treerl.cli import main

    changes = folder / "changes.yaml"
    changes.write_text(yaml.safe_dump(settings(job, folder)), encoding="utf-8")
    main(["fit", "--config", str(CONFIGS / f"{job.side}.yaml"), "--config", str(changes)])
    return json.loads((folder / "points.json").read_text(encoding="utf-8"))
