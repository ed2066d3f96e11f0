"""Telling the supervisor what a rank's program raised: once, from the first who sees it.

An error out of `fit` passes the wrapped Trainer, and after that the outermost frame of a
rank that the zygote or the worker started. Whoever comes first tells it (the program may
catch it, or take long to end) and marks it, so that it is not told again.
"""

from __future__ import annotations

import errno
import multiprocessing
import runpy
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from selfsched.core.events import RankRaised

_MARK = "_selfsched_told"
_OURS = Path(__file__).parent.parent
_MULTIPROCESSING = Path(multiprocessing.__file__).parent
_RUNPY = {runpy.__file__, "<frozen runpy>"}


def to_tell(error: BaseException, rank: int, *, fit: int | None = None) -> RankRaised | None:
    """The event for an error that is being handled here; None where it was told already.

    Its traceback begins at the first line of the user's own program. `fit` is the ordinal of
    the fit that it came out of, if of one.
    """
    if getattr(error, _MARK, False):
        return None
    with suppress(AttributeError, TypeError):  # some exceptions are frozen: then it is told twice
        setattr(error, _MARK, True)
    return RankRaised(
        rank=rank, fit=fit, type=type(error).__name__, message=_said_by(error),
        traceback=_as_its_program_shows_it(error), out_of_memory=is_out_of_memory(error),
        lost_worker=is_lost_worker(error),
    )  # fmt: skip


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the host or of a device ran out, by whatever name."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "out of memory" in _said_by(error).lower()


def is_lost_worker(error: BaseException) -> bool:
    """Whether torch's DataLoader could not fetch what a worker of its own had made.

    A batch stays in its worker's memory until it is fetched. Where the worker is killed before,
    that fails as a connection does, in `multiprocessing`, and mostly before torch can see that the
    worker is dead. What the dataset itself raises has a frame of the dataset, or comes by another way.
    """
    loader = sys.modules.get("torch.utils.data.dataloader")
    if loader is None or not isinstance(error, EOFError | OSError):
        return False
    if isinstance(error, OSError) and error.errno == errno.EMFILE:  # too many open files
        return False
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if loader.__file__ not in files:
        return False
    below = files[len(files) - files[::-1].index(loader.__file__) :]
    torch = Path(str(loader.__file__)).parents[2]
    within = all(_is_within(file, _MULTIPROCESSING) or _is_within(file, torch) for file in below)
    return within and bool(below) and _is_within(below[-1], _MULTIPROCESSING)


def _is_within(file: str, folder: Path) -> bool:
    return Path(file).is_relative_to(folder)


def _said_by(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as own:  # noqa: BLE001 - the user's own __str__ may raise anything
        return f"(what it says cannot be told: its __str__ raised {type(own).__name__})"


def _as_its_program_shows_it(error: BaseException) -> str:
    shown = traceback.TracebackException.from_exception(error)
    above = error.__traceback__.tb_frame.f_back if error.__traceback__ else None
    outer = [] if above is None else list(traceback.StackSummary.extract(traceback.walk_stack(above)))[::-1]
    whole = [*outer, *shown.stack]
    first = next((index for index, frame in enumerate(whole) if not _is_ours(frame.filename)), 0)
    shown.stack = traceback.StackSummary.from_list(whole[first:])
    return "".join(shown.format())


def _is_ours(file_name: str) -> bool:
    return file_name in _RUNPY or Path(file_name).is_relative_to(_OURS)
