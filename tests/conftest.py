"""Shared fixtures; tiny models are fastest on one thread."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")

settings.register_profile("no-clock", deadline=None)  # a busy machine is no failure
settings.load_profile("no-clock")
