"""Errors of ours that nobody catches: one line and their own exit code, in a script as in a cell.

Nothing is set up before such an error is raised.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from selfsched.errors import SelfschedError

_Parameters = ParamSpec("_Parameters")
_Returned = TypeVar("_Returned")
_MARK = "_selfsched_plain"


def plainly(function: Callable[_Parameters, _Returned]) -> Callable[_Parameters, _Returned]:
    """What the function raises of `errors` is shown without a traceback through selfsched."""

    @functools.wraps(function)
    def called(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Returned:
        try:
            return function(*arguments, **named)
        except SelfschedError as error:
            _show_plainly(error)
            raise

    return called


def lines_of(error: SelfschedError) -> list[str]:
    """What is shown of an error: its notes (the traceback of a rank), then one line."""
    notes = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
    return [*notes, f"{type(error).__name__}: {error}"]


def _show_plainly(error: SelfschedError) -> None:
    # IPython asks an exception for its own traceback by this name.
    error._render_traceback_ = lambda: lines_of(error)  # type: ignore[attr-defined]
    if not getattr(sys.excepthook, _MARK, False):
        sys.excepthook = _hook(sys.excepthook)


def _hook(earlier: Callable[..., object]) -> Callable[..., None]:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, SelfschedError):
            earlier(kind, error, trace)
            return
        print("\n".join(lines_of(error)), file=sys.stderr)
        raise SystemExit(error.exit_code)  # an interpreter ends with the code of its hook's SystemExit

    setattr(hook, _MARK, True)
    return hook
