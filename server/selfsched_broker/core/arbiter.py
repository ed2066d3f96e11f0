"""The arbiter: every decision of the broker, as pure functions.

Each takes the books and a `Context` (broker time, options, policy, generator) and returns a
`Decision`: the changes to commit and then apply, the answer to give after that, and the jobs
whose instructions changed. A `Refusal` means that the broker says no and nothing changes. The
same books, context and message give the same decision.

    jobs          register, report, release, end
    nodes         node_report
    people        control; set_account, record_token, revoke_token, drain_device, force_release
    time          advance (everything due by now), next_due, restart
    afterwards    settle_payments
    reading       instructions (and `views`)

The loop of whoever drives it (the service, the simulator): take a message, decide, commit,
apply, answer; then, while `next_due(books, ctx) <= ctx.now`, `advance`, commit, apply, and wake
the polls of touched jobs.
"""

from selfsched_broker.core.controls import (
    control,
    drain_device,
    force_release,
    record_token,
    revoke_token,
    set_account,
)
from selfsched_broker.core.draft import Context, Decision
from selfsched_broker.core.due import advance, next_due, restart
from selfsched_broker.core.jobs import end, register, release, report
from selfsched_broker.core.leases import LeaseOptions, Refusal
from selfsched_broker.core.nodes import node_report
from selfsched_broker.core.rulings import settle_payments
from selfsched_broker.core.views import instructions

__all__ = [
    "Context", "Decision", "LeaseOptions", "Refusal", "advance", "control", "drain_device", "end",
    "force_release", "instructions", "next_due", "node_report", "record_token", "register", "release",
    "report", "restart", "revoke_token", "set_account", "settle_payments",
]
