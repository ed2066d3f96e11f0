"""Every error a caller of selfsched can act on differently.

    SelfschedError
    ├── Refused              wrong use, found before anything ran (exit code 2)
    │   ├── InvalidSettings  an option, SELFSCHED_* name or config entry is wrong
    │   ├── InvalidMessage   a message that breaks the protocol
    │   └── Unsupported      this training cannot be run the way it was asked for
    ├── Yielded              the job left its devices and can be resumed (exit code 75)
    ├── Stopped              the user pressed Stop; a checkpoint was written
    ├── Detached             the user left a run that goes on by itself
    ├── RankFailed           a rank raised, died or ran out of memory (exit code 1)
    ├── CheckpointUnusable   a checkpoint is truncated, foreign or not ours to read
    └── BrokerError          the broker said no, or did not answer
        ├── BrokerUnreachable   nobody answered, or what answered is no broker: retry later
        ├── NotAllowed          the token or account is not accepted (exit code 2)
        └── LeaseLost           the lease is gone; its devices must not be used any more

Messages say what happened, with the values, then what to do.
"""

from __future__ import annotations

EXIT_FINE, EXIT_FAILED, EXIT_WRONG_USE, EXIT_YIELDED = 0, 1, 2, 75


class SelfschedError(Exception):
    """Base of every error that selfsched raises on purpose."""

    exit_code = EXIT_FAILED


class Refused(SelfschedError):
    """Wrong use, found before anything ran."""

    exit_code = EXIT_WRONG_USE


class InvalidSettings(Refused):
    """An option, a `SELFSCHED_*` name or an entry of the config file is wrong."""


class InvalidMessage(Refused):
    """A message breaks the protocol; nothing was stored."""


class Unsupported(Refused):
    """This training cannot be run the way it was asked for."""


class Yielded(SelfschedError):
    """The job left its devices with a checkpoint and can be resumed."""

    exit_code = EXIT_YIELDED


class Stopped(SelfschedError):
    """The user stopped the run; a checkpoint was written."""

    exit_code = 130


class Detached(SelfschedError):
    """The user left a run that goes on by itself; what it trained is not here yet."""

    exit_code = 130


class RankFailed(SelfschedError):
    """A rank raised, died or ran out of memory. The message names the rank and the reason."""


class CheckpointUnusable(SelfschedError):
    """A checkpoint is truncated, foreign, or not ours to read."""


class BrokerError(SelfschedError):
    """The broker said no. `code` is the problem code of its answer."""

    def __init__(self, message: str, *, code: str = "broker_error", status: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class BrokerUnreachable(BrokerError):
    """Nobody answered, or what answered is no selfsched broker."""


class NotAllowed(BrokerError):
    """The token or account is not accepted for this call."""

    exit_code = EXIT_WRONG_USE


class LeaseLost(BrokerError):
    """The lease is gone; its devices must not be used any more."""
