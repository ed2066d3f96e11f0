"""Strings of the front end: all of them reach translators, none goes round them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from babel.messages.catalog import Catalog

HOUSE = Path(__file__).parents[2] / "jupyter_ext"
SOURCES = sorted((HOUSE / "src").glob("*.ts*"))
_CALL = re.compile(r"trans\.(?:__|_n)\(\s*(.)")
_RAW_TEXT = re.compile(r"(?<![=\s])>\s*([^<>{}();=]*[A-Za-z]{2}[^<>{}();=]*)<")
_LABELS = "title|label|aria-label|placeholder|caption"
_RAW_LABEL = re.compile(rf"\b(?:{_LABELS})(?:=|: )[\"']([^\"']*[A-Za-z][^\"']*)")


@pytest.fixture(scope="module")
def strings() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "strings_of_the_front_end", HOUSE / "scripts" / "strings.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def catalogue(strings: ModuleType) -> Catalog:
    found = strings.collect()
    assert isinstance(found, Catalog)
    return found


@pytest.mark.slow
def test_every_call_for_a_translation_is_extracted(catalogue: Catalog) -> None:
    known = {m.id[0] if isinstance(m.id, tuple | list) else m.id for m in catalogue}
    for path in SOURCES:
        for call in re.finditer(r"trans\.(?:__|_n)\(\s*'((?:[^'\\]|\\.)*)'", path.read_text()):
            assert call.group(1).replace("\\'", "'") in known, f"{path.name}: {call.group(0)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_string_that_a_user_sees_goes_round_the_translation(path: Path) -> None:
    source = path.read_text()
    assert {call.group(1) for call in _CALL.finditer(source)} <= {"'"}, "a translator needs a literal"
    if path.suffix == ".tsx":
        assert _RAW_TEXT.findall(source) == []
        assert _RAW_LABEL.findall(source) == []


def test_what_goes_round_the_translation_would_be_found() -> None:
    assert _RAW_TEXT.findall("<li>\n  Held by <bdi>{name}</bdi> for now</li>") == ["Held by ", "for now"]
    assert _RAW_TEXT.findall("a > b && c < d; const f = (x: number): Map<string, number> => x") == []
    assert _RAW_LABEL.findall("<a title='Open it' aria-label={trans.__('Open')}>") == ["Open it"]


@pytest.mark.slow
def test_the_settings_editor_s_strings_are_among_them(catalogue: Catalog) -> None:
    assert catalogue.get("Refresh", "settings") is not None
    assert catalogue.get("selfsched", "schema") is not None


def test_a_translation_is_what_jupyterlab_reads_and_what_is_not_translated_is_left_out(
    strings: ModuleType,
) -> None:
    made = Catalog(locale="de_DE")
    made.add("Cluster", "Rechner")
    made.add(("%1 device", "%1 devices"), ("%1 Gerät", "%1 Geräte"))
    made.add("Refresh", "Auffrischen", context="settings")
    made.add("Devices", "")
    found = strings.for_jupyterlab(made, "de_DE")
    head = found.pop("")
    assert (head["language"], head["plural_forms"]) == ("de-DE", "nplurals=2; plural=(n != 1);")
    assert found == {
        "Cluster": ["Rechner"],
        "%1 device": ["%1 Gerät", "%1 Geräte"],
        "settings\u0004Refresh": ["Auffrischen"],
    }
