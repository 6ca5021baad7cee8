"""Settings errors that a person can act on: what is wrong, and what would be right."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from lit_treerl.settings import SettingsError


class ReadableParser(LightningArgumentParser):
    """The command line's parser, with errors of a line or two."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong and what would be right; exit with 2."""
        if not self.exit_on_error:  # a parser inside the parser: the outer one reports
            super().error(message, ex)
        options = [option for action in self._actions for option in action.option_strings]
        sys.stderr.write(f"lit-treerl: error: {explain(message, options)}\n")
        sys.exit(2)


@contextmanager
def as_settings_error() -> Iterator[None]:
    """Turn the errors of classes that check their arguments into :class:`SettingsError`."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise SettingsError(str(error)) from error


def explain(message: str, options: Iterable[str] = ()) -> str:
    """A short form of jsonargparse's ``message`` that names the key and offers what was probably meant."""
    if match := re.search(r"[Uu]nrecognized arguments: (\S+)|does not accept option '([^']+)'", message):
        name = "--" + (match[1] or match[2]).split("=")[0].lstrip("-")
        return f"unknown option {name}{_close(name, list(options))} (all options: lit-treerl COMMAND --help)"
    key = ".".join(re.findall(r'Parser key "([^"]+)"', message)[:1])
    nested = re.search(r"NestedArg\(key='([^']+)'", message)
    name = f"{key}.{nested[1]}" if nested else key
    if matches := re.findall(r"class_path '([^']+)':\s+Option '([^']+)' is not accepted", message):
        return _unknown_parameter(name, *matches[-1])
    if matches := re.findall(r"class_path '([^']+)':\s+.*?Key '([^']+)' is not expected", message, re.DOTALL):
        return _unknown_parameter(name, *matches[-1])
    if match := re.search(r"[Kk]ey '?([\w.]+)'? is not expected", message):
        dotted = [option.lstrip("-") for option in options]
        return f"unknown key {match[1]!r}{_close(match[1], dotted)}"
    if match := re.search(r"dot import path string: (\S+)", message):
        return _unknown_class(name, match[1], re.findall(r"<class '(lit_treerl[^']+)'>", message))
    lines = [line.strip(" -") for line in message.splitlines() if _says_something(line)]
    return "\n  ".join(lines)


def _unknown_parameter(name: str, class_path: str, option: str) -> str:
    parameters = [p for p in inspect.signature(_load(class_path)).parameters if p != "self"]
    where = name if name.endswith(option) else f"{name}.{option}"
    short = class_path.rpartition(".")[2]
    return f"unknown parameter {where}{_close(option, parameters)}; {short} takes {', '.join(parameters)}"


def _unknown_class(name: str, given: str, bases: list[str]) -> str:
    known = sorted({cls.__name__ for base in bases for cls in _concrete(_load(base))})
    also = ["auto"] if "Sampler" in "".join(bases) else []
    return f"{name}: {given!r} is not a known class{_close(given, known)}; known are {', '.join(also + known)}"


def _concrete(base: type) -> Iterator[type]:
    if not inspect.isabstract(base):
        yield base
    for subclass in base.__subclasses__():
        yield from _concrete(subclass)


def _load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _close(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""


def _says_something(line: str) -> bool:
    noise = ("Does not validate", "Subtypes:", "Errors:", "Expected a <class 'NoneType'>", "Given value")
    return bool(line.strip()) and not line.strip(" -").startswith(noise)
