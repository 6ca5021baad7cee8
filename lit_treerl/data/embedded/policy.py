"""The embedded policy: a Qwen3 small enough to train on one CPU core (about 0.65 MB in bfloat16)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lit_treerl.data.embedded.tokenizer import EOS, MAX_POSITIONS, PAD, build_tokenizer, vocabulary

if TYPE_CHECKING:
    from transformers import Qwen3Config

SEED_POLICY = Path(__file__).parent / "seed_policy"


def seed_policy_config() -> Qwen3Config:
    """Configuration of the embedded policy: 3 layers of width 96, head size 32 (which vLLM takes on a CPU too)."""
    from transformers import Qwen3Config

    words = vocabulary()
    return Qwen3Config(
        vocab_size=len(words),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        use_sliding_window=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        pad_token_id=words.index(PAD),
        eos_token_id=words.index(EOS),
        bos_token_id=None,
    )


def init_policy(folder: str | Path, seed: int = 0) -> Path:
    """Write a randomly initialised policy with its tokenizer as a Hugging Face folder; equal seeds, equal weights."""
    import torch
    from transformers import Qwen3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(seed_policy_config()).bfloat16()
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return Path(folder)
