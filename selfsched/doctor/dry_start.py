"""Start a script up to its first `fit`, and write down what it made on the way.

Run as a program: `python -m selfsched.doctor.dry_start REPORT SCRIPT [ARGUMENT...]`. The
code before `fit` runs for real, in the directory it is started in; nothing is trained.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

_WRITING = os.O_WRONLY | os.O_RDWR
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class ReachedFit(BaseException):
    """Raised in place of training; no `except Exception` of a script may swallow it."""


class Observer:
    """Notes directories made and files opened for writing, by an audit hook."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.on = False
        self._here = os.path.join(os.getcwd(), "")
        self._passing = (os.path.join(tempfile.gettempdir(), ""), "/dev/", "/proc/")

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """What `sys.addaudithook` calls; never raises."""
        if not self.on:
            return
        if event == "os.mkdir" or (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
        ):
            self._note(arguments[0])

    def _note(self, path: Any) -> None:
        if isinstance(path, bytes | str):
            absolute = os.path.abspath(os.fsdecode(path))
            # Compiled modules and temporary files are meant to differ.
            passing = absolute.startswith(self._passing) and not absolute.startswith(self._here)
            if not passing and "__pycache__" not in absolute:
                self.made.append(absolute)


def _stop_at_fit(*arguments: Any, **named: Any) -> NoReturn:
    raise ReachedFit


def _replace_fit() -> None:
    for name in _PACKAGES:
        if importlib.util.find_spec(name.split(".")[0]) is not None:
            importlib.import_module(name).Trainer.fit = _stop_at_fit
    importlib.import_module("selfsched.elastic.trainer").Trainer.fit = _stop_at_fit


def main() -> None:
    """Start the script named on the command line and leave the report."""
    report, script = Path(sys.argv[1]), sys.argv[2]
    _replace_fit()
    observer = Observer()
    sys.addaudithook(observer.hook)
    sys.argv = sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    before = set(sys.modules)
    reached = False
    try:
        observer.on = True
        runpy.run_path(script, run_name="__main__")
    except ReachedFit:
        reached = True
    finally:
        observer.on = False
        report.write_text(
            json.dumps(
                {
                    "reached_fit": reached,
                    "made": observer.made,
                    "trackers": [name for name in ("wandb", "mlflow", "neptune", "comet_ml")
                                 if name in sys.modules and name not in before],
                }
            )
        )  # fmt: skip


if __name__ == "__main__":
    main()
