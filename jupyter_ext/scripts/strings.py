"""The strings of the front end for translators, in JupyterLab's gettext way.

    python jupyter_ext/scripts/strings.py FILE.pot     writes the template of all translations
    python jupyter_ext/scripts/strings.py --compile    makes of each locale/*/LC_MESSAGES/*.po its .json

JupyterLab asks packages that name themselves under `jupyterlab.locale` for the JSON of the chosen
language; a language pack may hold the same, and extracts by itself. Strings of the settings editor
stand in the schema.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract
from babel.messages.pofile import read_po, write_po
from jupyterlab_server.translation_utils import DEFAULT_SCHEMA_SELECTORS

from selfsched_jupyter import __version__

HOUSE = Path(__file__).parents[1]
DOMAIN = "selfsched_jupyter"
LOCALE = HOUSE / DOMAIN / "locale"
CALLS = ("trans", "room.trans", "_room.trans", "this._room.trans")
_KEYWORDS: dict[str, Any] = {
    f"{call}.{kind}": places for call in CALLS for kind, places in (("__", None), ("_n", (1, 2)))
}
_SCHEMA = HOUSE / "schema" / "plugin.json"


def collect() -> Catalog:
    """All strings that a user may see, with where each stands."""
    catalogue = Catalog(project=DOMAIN, version=__version__, charset="utf-8", fuzzy=False)
    for path in sorted((HOUSE / "src").glob("*.ts*")):
        with path.open("rb") as source:
            for _line, message, _, context in extract("javascript", source, _KEYWORDS):
                # Without lines: they would change with each edit.
                catalogue.add(message, locations=[(f"src/{path.name}", None)], context=context)
    for message, context in _schema_strings(json.loads(_SCHEMA.read_text()), ""):
        catalogue.add(message, locations=[("schema/plugin.json", None)], context=context)
    return catalogue


def _schema_strings(node: Any, path: str) -> Iterator[tuple[str, str]]:  # JSON of any shape
    """Strings that JupyterLab translates in a schema, with their context."""
    for key, value in node.items() if isinstance(node, dict) else ():
        below = f"{path}/{key}".lstrip("/")
        if isinstance(value, str):
            for pattern, context in DEFAULT_SCHEMA_SELECTORS.items():
                if re.fullmatch(pattern, below):
                    yield value, context
                    break
        else:
            yield from _schema_strings(value, below)


def write_template(path: Path) -> None:
    """The file that a translation begins with, or is brought up to date by (`msgmerge`)."""
    with path.open("wb") as written:
        write_po(written, collect(), width=100, sort_output=True)


def for_jupyterlab(catalogue: Catalog, language: str) -> dict[str, Any]:
    """A catalogue as JupyterLab's front end reads it; what is not translated is left out.

    Args:
        catalogue: with its translations.
        language: such as `de_DE`.
    """
    plurals = catalogue.plural_forms
    # The front end looks a language up with a hyphen, whatever the folder is called.
    tag = language.replace("_", "-")
    head = {"domain": DOMAIN, "language": tag, "plural_forms": plurals, "version": __version__}
    found: dict[str, Any] = {"": head}
    for message in catalogue:
        translated = _translations(message)
        if message.id and all(translated):
            first = message.id[0] if isinstance(message.id, tuple | list) else message.id
            key = f"{message.context}\u0004{first}" if message.context else first
            found[key] = translated
    return found


def _translations(message: Message) -> list[str]:
    return list(message.string) if isinstance(message.string, tuple | list) else [message.string or ""]


def compile_languages() -> None:
    """Write the JSON beside each translation."""
    for path in sorted(LOCALE.glob(f"*/LC_MESSAGES/{DOMAIN}.po")):
        language = path.parts[-3]
        with path.open("rb") as source:
            catalogue = read_po(source, locale=language, domain=DOMAIN)
        text = json.dumps(for_jupyterlab(catalogue, language), ensure_ascii=False, indent=1, sort_keys=True)
        path.with_suffix(".json").write_text(f"{text}\n")


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or (arguments[0].startswith("-") and arguments[0] != "--compile"):
        print(__doc__, file=sys.stderr)
        return 2
    if arguments[0] == "--compile":
        compile_languages()
    else:
        write_template(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
