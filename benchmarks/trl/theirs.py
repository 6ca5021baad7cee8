"""TRL's side: GRPOTrainer with the settings of configs/grpo.yaml, on the same questions in the same order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.trl.job import BETAS, CLIP, DUAL_CLIP, GROUP, POLICY, STEPS, Clock, Job, Point, Sampling, World
from benchmarks.trl.rollouts import Rollouts, reward
from lit_treerl.policies import policy_path
from lit_treerl.trees.task import Task


def check_trl() -> None:
    """Raise SystemExit where TRL is not installed."""
    if find_spec("trl") is None:
        raise SystemExit("benchmarks.trl compares with TRL, which is not installed: pip install trl")


def grpo_config(job: Job, folder: Path, **changes: Any) -> Any:
    """The job as a GRPOConfig; what it does not name is TRL's default."""
    from trl import GRPOConfig

    given: dict[str, Any] = {
        "output_dir": str(folder),
        "seed": job.seed,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "learning_rate": job.lr,
        "lr_scheduler_type": "constant",
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "per_device_train_batch_size": job.tasks * GROUP // STEPS,
        "steps_per_generation": STEPS,
        "num_generations": GROUP,
        "beta": 0.0,
        "epsilon": CLIP,
        "delta": DUAL_CLIP,
        "loss_type": "bnpo",  # the mean over all sampled tokens of an optimizer step
        "scale_rewards": job.scaling,
        "shuffle_dataset": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    return GRPOConfig(**(given | changes))


def make_trainer(
    job: Job, folder: Path, world: World, tasks: Sequence[Task], rollout: Callable[..., Any], **changes: Any
) -> Any:
    """A GRPOTrainer that asks ``tasks`` in their order."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM

    from trl import GRPOTrainer

    env = world.env.spawn()
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(policy_path(POLICY), dtype=torch.float32),
        reward_funcs=reward,
        args=grpo_config(job, folder, **changes),
        train_dataset=Dataset.from_list([{"prompt": env.reset(task)} for task in tasks]),
        processing_class=world.tokens.tokenizer,
        rollout_func=rollout,
    )


def watch(job: Job, clock: Clock, rollouts: Rollouts, examine: Callable[[Any], float]) -> Any:
    """The callback that examines after every iteration and ends the run at the target."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.note(control, kwargs["model"])

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % STEPS == 0:
                clock.stop()
                self.note(control, kwargs["model"])

        def note(self, control: Any, model: Any) -> None:
            em = examine(model)
            clock.note(em, rollouts.sampled, rollouts.seconds)
            print(f"trl  {clock.points[-1]}", flush=True)
            if em >= job.target or rollouts.sampled >= job.max_tokens:
                control.should_training_stop = True
            clock.start()

    return Watch()


def run(job: Job, folder: Path) -> list[Point]:
    """Train until the target, on one thread."""
    torch.set_num_threads(1)
    world = World(job.validation)
    tasks, clock, sampling = world.order(job.seed), Clock(), Sampling(world)
    tasks = tasks[: len(tasks) // job.tasks * job.tasks]
    rollouts = Rollouts(world, tasks)
    steps = len(tasks) // job.tasks * STEPS  # one pass over the questions, far beyond any budget of tokens
    trainer = make_trainer(job, folder, world, tasks, rollouts, max_steps=steps)
    trainer.add_callback(watch(job, clock, rollouts, lambda model: sampling.exact_match(model.state_dict().items())))
    trainer.train()
    return clock.points
