"""Which allocation source a job gets."""

from __future__ import annotations

from selfsched.elastic.allocation import AllocationSource
from selfsched.elastic.job import JobDescription


def choose_source(job: JobDescription) -> AllocationSource:
    """Who decides on this job's devices: its plan, a profile, this machine alone, or a broker.

    Raises:
        Refused: the plan cannot be read.
    """
    from selfsched.elastic import plan

    if job.plan is not None:
        return plan.planned(job)
    if job.profile:
        from selfsched.elastic.profile import profiled

        return profiled(job)
    if job.without_broker:
        return plan.unarbitrated(job)
    from selfsched.negotiator import Negotiator

    source: AllocationSource = Negotiator()
    return source
