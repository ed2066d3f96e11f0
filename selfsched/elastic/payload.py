"""What travels from the caller's process to the ranks: module, data and trainer arguments.

Pickled by cloudpickle, so that classes and functions of a notebook's or script's
`__main__` travel by value. What cannot travel is refused by name, before anything runs.
"""

from __future__ import annotations

import errno
import io
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle

from selfsched.elastic.private_files import open_private, writing_private
from selfsched.errors import Refused

PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Code that travels by value is read by the same Python only."""
_DEEPEST = 8
_MOST_CELLS = 200
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Payload:
    """One `fit` as its caller asked for it. `Any`: these are the user's and Lightning's objects."""

    module: Any
    datamodule: Any = None
    train_dataloaders: Any = None
    val_dataloaders: Any = None
    ckpt_path: str | None = None
    trainer_arguments: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    """Text of a notebook's cells by their file name, so that tracebacks can show their lines."""


def cell_sources() -> dict[str, str]:
    """The cells of this kernel that IPython knows by name, newest first up to a bound."""
    found: dict[str, str] = {}
    for name, entry in reversed(list(linecache.cache.items())):
        if len(entry) == 4 and "ipykernel_" in os.path.dirname(name) and len(found) < _MOST_CELLS:
            found[name] = "".join(entry[2])
    return found


def know_sources(sources: Mapping[str, str]) -> None:
    """Let this process's tracebacks show lines of another process's cells."""
    for name, text in sources.items():
        # No modification time: entries without one are never looked for on disk.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def write_payload(payload: Payload, path: Path) -> None:
    """Pickle the payload to a new file of the user's alone.

    Raises:
        Refused: something in it cannot travel; the message names the attribute. Or the disk is full.
    """
    with writing_private(path) as file, _detached(payload):
        try:
            _Pickler(file).dump(payload)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise
            raise Refused(_explain(payload, error)) from error


def read_payload(path: Path) -> Payload:
    """Unpickle what `write_payload` wrote, from the run's own private directory.

    Raises:
        Refused: the file is not what `write_payload` wrote: a link, another user's, open to others.
    """
    with open_private(path) as file:
        payload = cloudpickle.load(file)
    if not isinstance(payload, Payload):
        raise Refused(f"{path} holds a {type(payload).__name__} and no payload")
    return payload


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, which forgets where code comes from; tracebacks need to know."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        reduce = self.dispatch_table.get(CodeType)
        if reduce is None:  # another cloudpickle: tracebacks without lines are not worth a failure
            return NotImplemented
        make, values = reduce(obj)
        return _make_code, (make, values, obj.co_filename)


def _make_code(make: Callable[..., CodeType], values: tuple[Any, ...], file_name: str) -> CodeType:
    return make(*values).replace(co_filename=file_name)


@contextmanager
def _detached(payload: Payload) -> Iterator[None]:
    """Without the trainer that an earlier `test` or `validate` left in the data module."""
    trainer = getattr(payload.datamodule, "trainer", None)
    if trainer is None:
        yield
        return
    payload.datamodule.trainer = None
    try:
        yield
    finally:
        payload.datamodule.trainer = trainer


def _explain(payload: Payload, error: Exception) -> str:
    names = {
        "module": payload.module,
        "datamodule": payload.datamodule,
        "train_dataloaders": payload.train_dataloaders,
        "val_dataloaders": payload.val_dataloaders,
        **{f"Trainer({name}=...)": value for name, value in payload.trainer_arguments.items()},
    }
    for name, value in names.items():
        if not _travels(value):
            where, culprit = _deepest_fault(name, value)
            return (
                f"{where} ({_kind(culprit)}) cannot travel to the training processes: {_first_line(error)}. "
                "Make it in setup() or on first use, or leave it out with __getstate__; "
                "elastic=False trains in this process"
            )
    return f"the training cannot travel to its processes: {_first_line(error)}"


def _deepest_fault(name: str, value: Any) -> tuple[str, Any]:
    """The innermost attribute or item on one path that does not travel."""
    for _ in range(_DEEPEST):
        for part, inner in _parts(value):
            if not _travels(inner):
                name, value = name + part, inner
                break
        else:
            break
    return name, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | set):
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))
    else:
        yield from ((f".{key}", inner) for key, inner in getattr(value, "__dict__", {}).items())


def _travels(value: Any) -> bool:
    try:
        cloudpickle.dump(value, io.BytesIO())
    except Exception:  # noqa: BLE001 - as above; that it failed is the answer
        return False
    return True


def _kind(value: Any) -> str:
    kind = type(value)
    return f"a {kind.__module__}.{kind.__qualname__}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")
