"""The actor: the policy as the trainer holds it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lit_treerl.modeling.attention import AttentionKind, attention_kernel, check_backbone, forward_hidden
from lit_treerl.modeling.logprobs import token_logprobs
from lit_treerl.modeling.pack import Pack

ACTOR_ADAPTER = "default"  # peft's name of the first adapter


class Actor(nn.Module):
    """A Hugging Face causal language model that scores packs.

    Args:
        model: the model, or a ``peft`` model around it; loaded with an
            :func:`~lit_treerl.modeling.attention.attention_kernel`.
        logprob_chunk: tokens per chunk of the vocabulary projection; None for chunks of 16 million logits.

    Raises:
        ValueError: where packs cannot be computed exactly with this model.
    """

    def __init__(self, model: nn.Module, logprob_chunk: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.logprob_chunk = logprob_chunk
        check_backbone(self.backbone)
        self.check_head()
        check_plain_logits(self.causal_lm.config)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        gradient_checkpointing: bool = False,
        lora: dict[str, Any] | None = None,
        logprob_chunk: int | None = None,
        attention: AttentionKind = "tree",
    ) -> Actor:
        """Load a model folder or hub name, in training mode.

        Args:
            path: folder with ``config.json`` and weights, or a hub name.
            dtype: of the weights.
            gradient_checkpointing: compute activations again in the backward pass, to save memory.
            lora: arguments of ``peft.LoraConfig``; all linear layers but the head by default. None trains all weights.
            logprob_chunk: tokens per chunk of the vocabulary projection; None for chunks of 16 million logits.
            attention: how packs are computed.

        Raises:
            ValueError: where ``path`` holds no causal language model, or LoRA's settings are not supported.
        """
        model = _load(str(path), dtype, attention_kernel(attention))
        if gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return cls(model if lora is None else _with_lora(model, lora), logprob_chunk).train()

    @property
    def causal_lm(self) -> Any:
        """The Hugging Face model inside, adapters in place."""
        return self.model.get_base_model() if self.has_adapter else self.model  # type: ignore[operator]

    @property
    def backbone(self) -> nn.Module:
        """The decoder without its head."""
        return self.causal_lm.base_model

    @property
    def head(self) -> nn.Linear:
        """The output layer."""
        return self.causal_lm.get_output_embeddings()

    def check_head(self) -> None:
        """Raise ValueError where the output layer is no plain linear layer, as with an adapter on it."""
        if type(self.head) is not nn.Linear:
            raise ValueError(f"the output layer must be a plain linear layer, it is a {type(self.head).__name__}")

    @property
    def has_adapter(self) -> bool:
        """Whether LoRA is trained on a frozen base."""
        return hasattr(self.model, "peft_config")

    def trained(self) -> list[nn.Parameter]:
        """What the policy's optimizer trains; adapters of others on the same base are not among them."""
        named = [(f".{name}.", p) for name, p in self.named_parameters() if p.requires_grad]
        return [p for name, p in named if not self.has_adapter or f".{ACTOR_ADAPTER}." in name]

    def logprobs(self, pack: Pack, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probs [N] of a pack's tokens and entropies [N] of the distributions they come from.

        A token is predicted from its parent token. Only action tokens and tokens with weight are computed; the others,
        and those that open a context, are 0.
        """
        wanted = ((pack.action | (pack.weight != 0)) & (pack.parent >= 0)).nonzero().squeeze(-1)
        hidden = forward_hidden(self.backbone, pack)[pack.parent[wanted]]
        head = self.head
        values = token_logprobs(hidden, head.weight, pack.ids[wanted], temperature, self.logprob_chunk, head.bias)
        zeros = values[0].new_zeros(len(pack))
        return zeros.index_copy(0, wanted, values[0]), zeros.index_copy(0, wanted, values[1])

    @torch.no_grad()
    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, detached tensor) of every weight, named as in the Hugging Face state dict, LoRA merged in.

        Tied output embeddings come under both names. Merging is done tensor by tensor and leaves the model as it is.
        """
        modules = dict(self.causal_lm.named_modules())
        for name, tensor in self.causal_lm.state_dict().items():
            module_name, _, base = name.partition(".base_layer.")
            if ".lora_" in name:
                continue
            if base == "weight" and ACTOR_ADAPTER in modules[module_name].scaling:
                tensor = tensor + modules[module_name].get_delta_weight(ACTOR_ADAPTER).to(tensor.dtype)
            yield name.replace(".base_layer.", "."), tensor.detach()

    def disable_adapter(self) -> AbstractContextManager[None]:
        """While entered, the actor is its frozen base: the reference policy.

        Raises:
            ValueError: where the actor has no adapter.
        """
        if not self.has_adapter:
            raise ValueError("this actor has no LoRA adapter to disable; load a second one as the reference")
        return self.model.disable_adapter()  # type: ignore[operator]

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write an ordinary Hugging Face model folder, LoRA merged in, weights as ``dtype`` (as they are when None)."""
        # By memory, so that tied weights stay tied and are written once. The original is held too: once it were freed,
        # another merged weight could come to lie in its place.
        cast: dict[int, tuple[Tensor, Tensor]] = {}
        weights = {}
        for name, tensor in self.named_weights():
            weights[name] = cast.setdefault(tensor.data_ptr(), (tensor, tensor.to(dtype or tensor.dtype)))[1]
        self.causal_lm.save_pretrained(str(folder), state_dict=weights)
        config = copy.copy(self.causal_lm.config)
        config.dtype = dtype or config.dtype  # that of the written weights
        config.save_pretrained(str(folder))


def check_plain_logits(config: Any) -> None:
    """Raise ValueError where the model scales or caps its logits (Granite, Cohere, Gemma 2): the head alone is used."""
    for name, plain in (("logits_scaling", 1), ("logit_scale", 1), ("final_logit_softcapping", None)):
        if (value := getattr(config, name, plain)) not in (plain, None):
            raise ValueError(f"models that change their logits are not supported; this one has {name} {value}")


def _load(path: str, dtype: torch.dtype, kernel: str) -> Any:
    from transformers import AutoModelForCausalLM

    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        raise ValueError(f"{path!r} holds no model: it has no config.json")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=kernel, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"no causal language model could be loaded from {path!r}: {error}") from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):  # they would be random numbers
        raise ValueError(
            f"the model in {path!r} lacks {len(missing)} weights its config asks for, such as {missing[0]}"
        )
    return model


def lora_config(settings: dict[str, Any]) -> Any:
    """``peft.LoraConfig`` of ``settings``; all linear layers but the head by default.

    Raises:
        ValueError: where a setting is unknown or not supported.
    """
    from peft import LoraConfig

    if settings.get("use_dora") or settings.get("modules_to_save"):
        raise ValueError("lora: use_dora and modules_to_save are not supported")
    try:
        arguments: dict[str, Any] = {"task_type": "CAUSAL_LM", "target_modules": "all-linear"}
        return LoraConfig(**(arguments | settings))
    except TypeError as error:
        raise ValueError(f"lora takes the arguments of peft.LoraConfig: {error}") from error


def _with_lora(model: nn.Module, settings: dict[str, Any]) -> nn.Module:
    from peft import get_peft_model

    return get_peft_model(model, lora_config(settings))  # type: ignore[arg-type]
