"""Settings errors that a person can act on: what is wrong, and what was probably meant."""

from __future__ import annotations

from typing import NoReturn

from lightning.pytorch.cli import LightningArgumentParser


class ReadableParser(LightningArgumentParser):
    """The CLI's parser, with errors of a few lines."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error and exit with 2."""
        super().error(message, ex)
