"""How a run or a job ended, in the one word that people read wherever it is shown.

A job that its owner stopped is `stopped`, by whichever way the order came. For programs the way still
shows: a Stop that came through the broker ends a run as `yielded` (exit code 75), one that came to the
run itself as `stopped` (130); the broker has the job as `cancelled` both times.
"""

from __future__ import annotations

from selfsched.protocol import JobState, JobView, Outcome

STOPPED_BY = "stopped by "
"""How the broker's reason for the end begins where somebody stopped the job."""
LEFT = "left its devices"


def run_end_words(outcome: str, message: str) -> str:
    """What became of a run: `finished`, `failed`, `refused`, `stopped`, `left its devices`.

    Args:
        outcome: as the run wrote it down.
        message: of the same.
    """
    if outcome != "yielded":
        return outcome
    return "stopped" if message.startswith(STOPPED_BY) else LEFT


def job_state_words(job: JobView) -> str:
    """Where a job stands: its state, or how it ended."""
    if job.state is not JobState.ENDED or job.outcome is None:
        return str(job.state)
    return "stopped" if job.outcome is Outcome.CANCELLED else str(job.outcome)
