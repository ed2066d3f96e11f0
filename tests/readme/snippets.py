"""Finds the code that the documentation shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"(?:<!-- test: (?P<name>\w+) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)```", re.DOTALL)
PAGES = ("README.md", "docs/training.md")


def python(page: str) -> dict[str, str]:
    """The Python blocks of a page, by the name in the comment above each.

    Raises:
        AssertionError: a block has no name, so that no test would run it.
    """
    text = (ROOT / page).read_text()
    found = {match["name"]: match["code"] for match in _FENCE.finditer(text) if match["language"] == "python"}
    assert None not in found, f"a Python block of {page} has no <!-- test: NAME --> above it"
    return found


def commands(page: str, program: str) -> list[list[str]]:
    """Every call of a program in the page, in blocks and in running text, split as a shell does."""
    text = (ROOT / page).read_text()
    blocks = [match["code"] for match in _FENCE.finditer(text) if match["language"] == "sh"]
    lines = [line for block in blocks for line in block.splitlines()]
    lines += [" ".join(call.split()) for call in re.findall(r"`([^`]+)`", _FENCE.sub("", text))]
    lines = [line.removeprefix("sudo ") for line in lines]
    found = [shlex.split(line, comments=True) for line in lines if line.startswith(f"{program} ")]
    return [words[1:] for words in found]
