"""Default texts of worlds that are acted in by commands, and how texts are filled in."""

from __future__ import annotations

import re
from collections.abc import Sequence

ANSWER_FORM = """\
Think about what to do next, between <think> and </think>. Then write one command, just as it is worded above, between \
<action> and </action>."""

PROMPT = f"""\
Your task: {{task}}

What happened before, the latest last:
{{history}}

This is step {{step}} of {{max_turns}} at most. You see:
{{observation}}

You can do:
{{commands}}

{ANSWER_FORM}"""

HISTORY = "[step {step}] you saw: {observation}\n[step {step}] you did: {command}"

FEEDBACK = "\n\n{observation}\n\nYou can do:\n{commands}\n\n"

_FIELD = re.compile(r"\{([a-z_]+)\}")


def fill(template: str, **values: str) -> str:
    """Put ``values`` where their names stand in braces, all at once: braces within a value stay as they are.

    >>> fill("{a} and {b}, {c}", a="{b}", b="2")
    '{b} and 2, {c}'
    """
    return _FIELD.sub(lambda match: values.get(match[1], match[0]), template)


def check_template(name: str, template: str, needed: Sequence[str], known: Sequence[str]) -> None:
    """Make sure that what must be shown has a place, and that nothing unknown is asked for.

    Raises:
        ValueError: naming the setting and the field.
    """
    found = set(_FIELD.findall(template))
    missing = [field for field in needed if field not in found]
    if missing or not found <= set(known):
        wrong = f"lacks {{{missing[0]}}}" if missing else f"has the unknown {{{min(found - set(known))}}}"
        raise ValueError(
            f"{name} {wrong}; it may use {', '.join(f'{{{field}}}' for field in known)}: {template[:80]!r}"
        )
