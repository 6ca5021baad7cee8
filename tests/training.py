"""A tiny policy's module, trees for it, and a trainer without loggers."""

from __future__ import annotations

import random
import warnings

import lightning as L
import torch
from torch.utils.data import DataLoader

from lit_treerl.algorithms.tree_grpo import TreeGRPO
from lit_treerl.modeling.pack import Pack
from lit_treerl.module import LitTreeRL
from lit_treerl.trees.tree import RolloutGroup
from tiny_models import VOCAB_SIZE
from tree_cases import group, random_tree

INTER = TreeGRPO(level="inter", normalisation="none")  # A = R - mean of the task's leaves
LR = 2e-3


def make_groups(seed: int = 0, count: int = 4) -> list[RolloutGroup]:
    rng = random.Random(seed)
    return [
        group(*(random_tree(rng, prompt=[5, 6, i], index=t, vocab=VOCAB_SIZE) for t in range(2)), task_id=str(i))
        for i in range(count)
    ]


def make_module(policy, cls=LitTreeRL, **settings) -> LitTreeRL:
    defaults = {"policy": str(policy), "algorithm": INTER, "actor_lr": LR}
    module = cls(**(defaults | settings))
    module.configure_model()
    return module


def fit(module: L.LightningModule, packs: list[Pack], **settings) -> L.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, enable_model_summary=False, **quiet, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, DataLoader(packs, batch_size=None))
    return trainer


def weights(module: LitTreeRL) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.actor.named_parameters()}
