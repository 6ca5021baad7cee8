"""Settings errors that a person can act on: what is wrong, and what would be right."""

from __future__ import annotations

import difflib
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, get_args, get_type_hints

from lightning.pytorch.cli import LightningArgumentParser

from lit_treerl.settings import SettingsError

_UNKNOWN_OPTION = re.compile(r"[Uu]nrecognized arguments: --(\S+)|Subcommand '\w+' does not accept option '([^']+)'")
_UNKNOWN_PARAMETER = re.compile(
    r"class_path '(?P<cls>[^']+)':\s+"
    r"(?:unrecognized arguments: --(?P<a>[\w.]+)|Group '(?P<group>[^']+)' does not accept option '(?P<b>[^']+)'"
    r"|Option '(?P<c>[^']+)' is not accepted|[^\n]*Key '(?P<d>[^']+)' is not expected)"
)
_NOISE = ("Does not validate", "Problem with given class_path", "Subtypes:", "Errors:", "Given value")


class ReadableParser(LightningArgumentParser):
    """The command line's parser, with errors of a line or two; options cannot be abbreviated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        self._reading = ""  # the config file under way
        super().__init__(*args, **kwargs)

    def parse_path(self, cfg_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Parse a config file; errors name it."""
        self._reading = f" (in {cfg_path})"
        parsed = super().parse_path(cfg_path, *args, **kwargs)
        self._reading = ""
        return parsed

    def parse_args(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> Any:
        """Parse arguments; to the parser of a nested class jsonargparse writes null as Python does."""
        if args is not None and not self.exit_on_error:
            args = [re.sub(r"^(--[\w.]+=)None$", r"\1null", arg) for arg in args]
        return super().parse_args(args, *more, **settings)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong and what would be right; exit with 2."""
        if not self.exit_on_error:  # a parser inside the parser: the outer one reports
            super().error(message, ex)
        sys.stderr.write(f"lit-treerl: error: {explain(message, self._all_options())}{self._reading}\n")
        sys.exit(2)

    def _all_options(self) -> list[str]:
        """Options of this parser, or of its commands: a config file's keys are judged by the parser above them."""
        commands = [getattr(action, "_name_parser_map", None) or {} for action in self._actions]
        parsers = [self, *(parser for found in commands for parser in found.values())]
        return [option for parser in parsers for action in parser._actions for option in action.option_strings]


@contextmanager
def as_settings_error() -> Iterator[None]:
    """Turn the errors of classes that check their arguments into :class:`SettingsError`."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise SettingsError(explain(str(error))) from error


def explain(message: str, options: Iterable[str] = ()) -> str:
    """A short form of jsonargparse's ``message`` that names the key and offers what was probably meant."""
    key = _key(message)
    if matches := list(_UNKNOWN_PARAMETER.finditer(message)):
        return _unknown_parameter(key, matches[-1])
    if match := _UNKNOWN_OPTION.search(message):
        name = "--" + (match[1] or match[2]).split("=")[0]
        return f"unknown option {name}{_close(name, list(options))} (all options: lit-treerl COMMAND --help)"
    if match := re.search(r"dot import path string: (\S+)", message):
        return _unknown_class(key, match[1], re.findall(r"Subtypes: .*?<class '(lit_treerl[^']+)'>", message)[-1])
    if expected := re.findall(r"Expected a (.+?)(?:\. Got value: (.*))?$", _innermost(message), re.MULTILINE):
        given = expected[0][1] or "".join(re.findall(r"Given value: (.*)", _innermost(message))[-1:])
        if key and given and "Not of type" not in message:
            return f"{key}: expected {' or '.join(_plain_type(kind) for kind, _ in expected)}, got {given!r}"
    lines = [line.strip(" -") for line in _innermost(message).splitlines()]
    said = [line for line in lines if line and not line.startswith((*_NOISE, "Expected a <class 'NoneType'>"))]
    return (f"{key}: " if key else "") + "\n  ".join(said)


def _key(message: str) -> str:
    """The dotted key that the innermost error is about: keys stand in the message one inside the other."""
    path: list[tuple[int, str]] = []
    for match in re.finditer(r'^([ -]*)Parser key "([^"]+)"', message, re.MULTILINE):
        path = [part for part in path if part[0] < len(match[1])] + [(len(match[1]), match[2])]
    return ".".join(name for _, name in path)


def _innermost(message: str) -> str:
    """What the message says under its last key."""
    head, found, tail = message.rpartition('Parser key "')
    if not found:
        return message
    indent = len(head) - head.rfind("\n") - 1
    first, *lines = tail.partition('":')[2].split("\n")
    inner = itertools.takewhile(lambda line: not line.strip() or len(line) - len(line.lstrip()) > indent, lines)
    return "\n".join([first, *inner])


def _plain_type(kind: str) -> str:
    """``<class 'int'>`` as ``int``, a literal's choices as they are, None as YAML writes it."""
    if literal := re.fullmatch(r"typing\.Literal\[(.*)\]", kind):
        return f"one of {literal[1]}"
    name = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", kind)
    return "null" if name == "NoneType" else name


def _unknown_parameter(key: str, match: re.Match[str]) -> str:
    group = f"{match['group']}." if match["group"] else ""
    dotted = group + next(found for found in (match["a"], match["b"], match["c"], match["d"]) if found)
    owner, *inside = _load(match["cls"]), *dotted.split(".")
    for name in inside[:-1]:  # into nested settings
        hint = get_type_hints(owner.__init__)[name]
        owner = next((arg for arg in get_args(hint) if isinstance(arg, type)), hint)
    parameters = [name for name in inspect.signature(owner).parameters if name != "self"]
    close, takes = _close(inside[-1], parameters), ", ".join(parameters) or "no parameters"
    return f"unknown parameter {key}.{dotted}{close}; {owner.__name__} takes {takes}"


def _unknown_class(key: str, given: str, base: str) -> str:
    from lit_treerl.registry import SHORT_NAMES

    known = [cls.__name__ for cls in SHORT_NAMES if issubclass(cls, _load(base))]
    also = ["auto"] if base.endswith(".Sampler") else []
    return f"{key}: {given!r} is not a known class{_close(given, known)}; known are {', '.join(also + known)}"


def _load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _close(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""
