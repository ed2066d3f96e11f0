"""docs/cases.md: every test that it names exists, and every case that must be proven is."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cases.md"
REQUIRED = {
    *(f"T{number}" for number in (*range(1, 17), 20, 24)),
    *(f"U{number}" for number in (1, 2, 3, 8, 11, 12, 13, 14, 16)),
}
ROW = re.compile(r"^\| ([TUD]\d+)\b.*\|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> dict[str, list[tuple[str, str]]]:
    """(file, test) of each row, by the row's number."""
    return {match[1]: NAMED.findall(match[0]) for match in ROW.finditer(PAGE.read_text())}


@functools.cache
def names_in(file: str) -> frozenset[str]:
    """Tests that a file defines; a state machine's `TestCase` counts as one."""
    found = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(name for name in found if name.lower().startswith("test"))


def test_every_case_that_must_be_proven_has_a_row() -> None:
    assert set(rows()) >= REQUIRED


@pytest.mark.parametrize("number", rows())
def test_a_row_names_tests_that_exist(number: str) -> None:
    named = rows()[number]
    assert named
    assert [f"{file}::{name}" for file, name in named if name not in names_in(file)] == []


def test_no_test_is_named_in_another_way() -> None:
    """What is not found by the pattern above would not be looked for."""
    text = PAGE.read_text()
    assert text.count("::") == len(NAMED.findall(text))
