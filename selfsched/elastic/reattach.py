"""`selfsched.attach`: a run of this user is followed again, and what it trained brought back.

The run's directory has what is needed: the payload, from which module, callbacks and Trainer are built
as they were when `fit` was called, and the result, or the newest checkpoint, which brings them to
where the training stands. A payload is the user's own pickle in a directory of the user's alone,
and is read only by the Python that wrote it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfsched import settings
from selfsched.elastic.attach import AttachedRun
from selfsched.elastic.checkpoints import ensure_private
from selfsched.elastic.fit_end import raise_as_ended
from selfsched.elastic.following import FollowedRun
from selfsched.elastic.found_runs import FoundRun, newest_detached, run_named, runs_of, started
from selfsched.elastic.job import installed_version
from selfsched.elastic.payload import PYTHON_VERSION, Payload, know_sources, read_payload
from selfsched.elastic.plain_errors import plainly
from selfsched.elastic.run_directory import RunOutcome, reopen_run
from selfsched.elastic.trainer import Trainer, this_kernel, this_notebook, trainer_of_run
from selfsched.errors import CheckpointUnusable, Refused

_LEFT = {"stopped": "the run was stopped", "yielded": "the run has left its devices"}
_WITHOUT_RESULT = ("failed", "refused", "lost")
"""States of a run of which `attach` raises the error, and builds no module."""
_BARE_ARGUMENTS: Mapping[str, Any] = {
    "logger": False, "enable_checkpointing": False, "enable_model_summary": False,
}  # fmt: skip
"""Of a Trainer for a run whose own arguments cannot be read."""


@dataclass(frozen=True)
class TrainedRun:
    """A run as `attach` brought it back."""

    name: str
    """What `attach` finds it by."""
    outcome: str
    """`finished`, `stopped`, `yielded`; or `running`, where it was not waited for."""
    model: Any
    """The module, with the weights of the run's end, or of its newest checkpoint."""
    datamodule: Any
    """The data module that `fit` was given; None: it was given none, or it cannot be read."""
    trainer: Trainer
    """In the state in which the run is: metrics, callbacks, counters; `test`, `validate`, `predict`,
    `save_checkpoint`. Where the run did not finish, its `fit` goes on with it."""

    @property
    def callback_metrics(self) -> dict[str, Any]:
        """The newest logged values."""
        return self.trainer.callback_metrics

    def __repr__(self) -> str:
        kind = type(self.model).__name__
        return f"<run {self.name}, {self.outcome} at step {self.trainer.global_step}, with its {kind}>"


@plainly
def attach(
    name: str | None = None, model: Any = None, *, wait: bool = True, resume: bool = False
) -> TrainedRun:
    """Follow a run again, to its end if it goes on, and bring back what it trained.

    Ctrl-C or a notebook's Stop leaves a run that goes on.

    Args:
        name: Of the run: as it was given, as `selfsched runs` lists it, or how that begins. None: the
            newest detached run of this notebook; where there is none, the newest of this user.
        model: A module that gets the weights. None: one is built again from what `fit` was given.
        wait: False takes what there is: of a run that goes on, its newest checkpoint.
        resume: A run that was stopped, failed or was killed goes on from its newest checkpoint.

    Returns:
        The run, with its module and a Trainer in the state in which it ended, or was left.

    Raises:
        Detached: the run was left again, and goes on.
        RankFailed, Unsupported: it failed, or was refused; the same error that `fit` raised.
        Refused: there is no such run, several are meant, or its module cannot be built here.
        CheckpointUnusable: it has left no weights, or another version's, or others may write there.

    Example:
        >>> run = selfsched.attach()  # doctest: +SKIP
        >>> run.trainer.test(run.model, run.datamodule)  # doctest: +SKIP
    """
    chosen = settings.load(unknown="warn")
    parent = runs_of(chosen)
    run = _newest(parent) if name is None else run_named(name, parent)
    if run.job.program != "payload":
        raise Refused(
            f"the run {run.name} is a command and has no module to bring back; `selfsched attach {run.name}` "
            "follows it"
        )
    print(f"selfsched: run {run.name}, started {started(run)}, {run.state}", flush=True)
    # Before the end is waited for: what cannot be brought back is said at once.
    payload = _payload(run, is_needed=model is None and (resume or run.state not in _WITHOUT_RESULT))
    outcome = _outcome(run, payload, wait=wait, resume=resume)
    if outcome is not None and outcome.outcome in ("failed", "refused"):
        raise_as_ended(outcome, run.directory.path)
    trained = _brought_back(run, payload, model, "running" if outcome is None else outcome.outcome)
    if outcome is not None and outcome.outcome != "finished":
        words = outcome.message or _LEFT[outcome.outcome]
        print(
            f"selfsched: {words}; it is at step {trained.trainer.global_step}, and "
            f"selfsched.attach({run.name!r}, resume=True) goes on from there",
            flush=True,
        )
    return trained


def _newest(parent: Path) -> FoundRun:
    return newest_detached(parent, notebook=this_notebook(), with_module=True)


def _outcome(run: FoundRun, payload: Payload | None, *, wait: bool, resume: bool) -> RunOutcome | None:
    """How it ended; None: it goes on, and is not waited for."""
    from selfsched.elastic.views import shows_bar, view_for_here

    bar = shows_bar(payload.trainer_arguments if payload is not None else {})
    if resume and run.state not in ("running", "finished"):
        return _gone_on(run, bar=bar)
    if run.state == "running" and not wait:
        return None
    followed = FollowedRun(run.job)
    return followed.follow(view_for_here(run.job, bar=bar, clock=followed.clock))


def _gone_on(run: FoundRun, *, bar: bool) -> RunOutcome:
    """Start its supervisor again, in the same directory, and follow it."""
    from selfsched.elastic.views import view_for_here

    if not run.directory.payload.exists():
        raise Refused(_payload_gone(run) + ", so it cannot go on")
    here = {"started_at_unix": time.time(), "notebook": this_notebook(), "kernel_id": this_kernel()}
    job = run.job.model_copy(update=here)
    view = view_for_here(job, bar=bar)
    _, lock = reopen_run(run.directory.path)
    return AttachedRun(job, lock).follow(view)


# --- what fit was given ----------------------------------------------------------------------


def _payload(run: FoundRun, *, is_needed: bool) -> Payload | None:
    """What `fit` was given; None: it cannot be read, and is not needed.

    Raises:
        Refused: it cannot be read.
        CheckpointUnusable: others could have changed it.
    """
    ensure_private(run.directory.path)  # its result and its checkpoints are read as well
    try:
        payload = _read_payload(run)
    except Refused:
        if is_needed:
            raise
        return None
    know_sources(payload.sources)  # tracebacks out of its module show the lines of its notebook
    return payload


def _read_payload(run: FoundRun) -> Payload:
    path, job = run.directory.payload, run.job
    theirs = f"Python {job.python_version}, selfsched {job.selfsched_version}"
    ours = f"Python {PYTHON_VERSION}, selfsched {installed_version()}"
    if not path.exists():
        raise Refused(f"{_payload_gone(run)}; {_give_one(run)}")
    if job.python_version != PYTHON_VERSION:
        raise Refused(f"the run {run.name} was started with {theirs}, and here is {ours}; {_give_one(run)}")
    try:
        with _importing_as(job.import_path):
            return read_payload(path)
    # Unpickling runs the user's own imports and __setstate__, which may raise anything.
    except Exception as error:
        how = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        between = "" if theirs == ours else f" ({theirs}; here is {ours})"
        what = f"what the run {run.name} was given cannot be read: {how}{between}"
        raise Refused(f"{what}; {_give_one(run)}") from error


def _payload_gone(run: FoundRun) -> str:
    if not run.job.detached:
        return f"the module of the run {run.name} was not kept, since it was not a detached run"
    return f"the module of the run {run.name} was not kept: newer runs have taken its place"


def _give_one(run: FoundRun) -> str:
    return f"give a module of the same shape: selfsched.attach({run.name!r}, model)"


@contextmanager
def _importing_as(path: tuple[str, ...]) -> Iterator[None]:
    """With the caller's places to import from behind our own, for what travelled by name."""
    before = list(sys.path)
    sys.path.extend(entry for entry in path if entry not in before)
    try:
        yield
    finally:
        sys.path[:] = before


# --- what it trained -------------------------------------------------------------------------


def _brought_back(run: FoundRun, payload: Payload | None, model: Any, outcome: str) -> TrainedRun:
    finished = outcome == "finished"
    given = model if payload is None or model is not None else payload.module
    datamodule = payload.datamodule if payload is not None else None
    arguments = payload.trainer_arguments if payload is not None else _BARE_ARGUMENTS
    try:
        trainer = trainer_of_run(run.job, arguments, model=given, datamodule=datamodule, finished=finished)
    except FileNotFoundError as gone:
        raise CheckpointUnusable(
            f"a checkpoint of the run {run.name} was replaced while it was read ({gone.filename}): "
            "attach again"
        ) from gone
    return TrainedRun(run.name, outcome, given, datamodule, trainer)
