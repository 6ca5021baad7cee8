"""ExportPolicy: the trained policy as an ordinary Hugging Face folder."""

from __future__ import annotations

from typing import Literal

import lightning as L
import torch

from lit_treerl.policies import load_tokenizer
from lit_treerl.policy_module import LitPolicy


class ExportPolicy(L.Callback):
    """Writes model, tokenizer and generation config when training ends.

    Args:
        folder: where to; made if needed.
        dtype: of the written weights.
    """

    def __init__(self, folder: str, dtype: Literal["float32", "bfloat16"] = "bfloat16") -> None:
        self.folder, self.dtype = folder, dtype

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the folder."""
        assert isinstance(pl_module, LitPolicy)
        assert pl_module.actor is not None
        if trainer.is_global_zero:
            pl_module.actor.save_pretrained(self.folder, getattr(torch, self.dtype))
            load_tokenizer(pl_module.policy).save_pretrained(self.folder)
            print(f"policy: {self.folder}")
