"""A run's end as an exception in the caller's process: named, one line, said once."""

from __future__ import annotations

from pathlib import Path

from selfsched.elastic.run_directory import RunOutcome
from selfsched.errors import RankFailed, SelfschedError, Stopped, Unsupported, Yielded

_ERRORS: dict[str, type[SelfschedError]] = {
    "stopped": Stopped, "yielded": Yielded, "refused": Unsupported, "failed": RankFailed,
}  # fmt: skip

_UNSAID = {
    "stopped": "a Stop ended the run", "yielded": "left its devices",
    "refused": "refused", "failed": "failed",
}  # fmt: skip


def raise_as_ended(outcome: RunOutcome, directory: Path) -> None:
    """Raise what a run's end means to the code after `fit`; nothing when it finished.

    The rank's own traceback, if there is one, is a note of the error (see `plain_errors`).

    Raises:
        Stopped, Yielded, Unsupported, RankFailed: as the run ended.
    """
    if outcome.outcome == "finished":
        return
    error = _ERRORS[outcome.outcome](_words(outcome, directory))
    if outcome.traceback:
        error.add_note(outcome.traceback.rstrip("\n"))
    raise error


def _words(outcome: RunOutcome, directory: Path) -> str:
    words = outcome.message or _UNSAID[outcome.outcome]
    if outcome.outcome in ("stopped", "yielded"):
        where = f"; fit() on the same Trainer goes on from the checkpoint at step {outcome.step}"
        words += where if outcome.step else "; there is no checkpoint yet"
    elif outcome.outcome == "failed":
        words += f" (logs: {directory})"
    return words
