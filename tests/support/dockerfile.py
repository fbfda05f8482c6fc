"""Reader of the instructions of a Dockerfile."""

from __future__ import annotations

import re

__all__ = ["instructions", "last_stage"]


def instructions(text: str) -> list[tuple[str, str]]:
    """Return each instruction and its arguments, in one line."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    result = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            result.append((name, rest.strip()))
    return result


def last_stage(text: str) -> dict[str, str]:
    """Return the instructions of the last stage, which is the image; of equal ones the last."""
    lines = instructions(text)
    start = max(number for number, (name, _) in enumerate(lines) if name == "FROM")
    return dict(lines[start:])
