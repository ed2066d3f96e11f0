"""Every message that crosses a wire between a job, a node, the broker and people.

Frozen, keyword-only and validated when built: a message that exists is legal. The cores of
both sides use the same types. Durations cross the wire, never instants: each side counts
them on its own clock. Every call that touches a lease carries its fence.

Glossary (one word per concept, in code, wire, commands and pictures)
---------------------------------------------------------------------
account      a person or service that owns jobs
node         one machine
device       one leasable unit: a GPU by UUID (a MIG instance counts as one), or on a
             machine without GPUs a CPU slot, a named set of cores
placement    how many devices of which model, on how many nodes
job          one training run of one account over all its restarts; states: waiting,
             starting, running, yielding, paused (holds nothing, keeps its place, its time
             does not count in rho), ended (finished, failed, cancelled, lost)
segment      a stretch of a job on one fixed set of devices
lease        one award: the right of a job to a set of devices that only shrinks; a job
             may hold several, a segment runs on their union
holding      one device of a lease
claim        an award of a device that its holder has not left yet
fence        the number of a lease, fixed for its life, from one counter of the broker that
             never goes back; every call that touches the lease carries it
incarnation  the number of a broker's or node's start
report       a job's or node's regular message
standing bid the table, kept at the broker, of what each placement would bring the job
auction      one decision over all standing bids; award: its result for one job
yield        the order to leave devices within a notice; release: the job's word that it left
ttl          liveness of a lease, renewed by every report
term         how long an award lasts before its devices are auctioned again; ends on a tick
tick         a moment of the broker's grid, one every term
visit        the short first run by which a job becomes able to bid
share        the devices a job would hold if all accounts divided them by weight
rho          finish-time fairness: predicted time shared / time alone on its share
debt         device-seconds an account still owes for what it won
forecast     the distribution of a job's finish time
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from selfsched.errors import InvalidMessage

PROTOCOL_VERSION = 1

# A century: nothing that trains takes longer, and sums of such numbers stay finite.
MAX_SECONDS = 3.2e9
MAX_DEVICES = 65_536
MAX_COUNT = 2**53

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""Of accounts, nodes and jobs: no control characters, no markup, no path."""
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
"""Of devices (GPU UUIDs, MIG UUIDs, CPU slots), jobs, leases, hardware."""
Text = Annotated[str, StringConstraints(max_length=2000)]
"""Words for people. Printed as text, never as markup."""
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
DeviceCount = Annotated[int, Field(ge=1, le=MAX_DEVICES)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Deviation = Annotated[float, Field(ge=-100, le=100)]


class Message(BaseModel):
    """Base of everything on the wire."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def to_json(self) -> str:
        return self.model_dump_json()


M = TypeVar("M", bound=Message)


def parse(kind: type[M], body: bytes | str) -> M:
    """Build a message from JSON.

    Raises:
        InvalidMessage: not JSON, a missing or unknown field, a number out of its range. The
            message names the fields; it never repeats the input.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        faults = "; ".join(
            f"{_place(fault['loc'])}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False, include_context=False)[:5]
        )
        raise InvalidMessage(f"{kind.__name__}: {faults}") from None


def _place(location: tuple[int | str, ...]) -> str:
    """Where a fault is. An unknown field's name comes from the sender: only a plain one is repeated."""
    plain = (str(part) if str(part).isidentifier() or isinstance(part, int) else "?" for part in location)
    return ".".join(part[:40] for part in plain) or "body"


# --- words -------------------------------------------------------------------------------


class JobState(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    YIELDING = "yielding"
    PAUSED = "paused"
    ENDED = "ended"


class Outcome(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


class DeviceState(StrEnum):
    FREE = "free"
    HELD = "held"
    YIELDING = "yielding"
    QUARANTINED = "quarantined"
    UNKNOWN = "unknown"
    DRAINED = "drained"


class Resume(StrEnum):
    """What may be done to a running job: resize it, stop it and go on later at its size, nothing."""

    ELASTIC = "elastic"
    SAME_SIZE = "same_size"
    NEVER = "never"


class ProblemCode(StrEnum):
    """`code` of a problem document, what a program acts on."""

    INVALID = "invalid_message"
    TOO_LARGE = "body_too_large"
    NOT_AUTHENTICATED = "not_authenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    IDEMPOTENCY_MISMATCH = "idempotency_key_reused"
    LEASE_LOST = "lease_lost"
    JOB_ENDED = "job_ended"
    IMPOSSIBLE = "impossible_request"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"


class Problem(Message):
    """The body of every answer that is no success (RFC 9457, `application/problem+json`)."""

    status: int
    code: str
    title: Text
    detail: Text = ""


# --- job -> broker -----------------------------------------------------------------------


class Placement(Message):
    """How many devices, of which model, on how many nodes."""

    devices: DeviceCount
    nodes: DeviceCount = 1
    model: Identifier | None = None
    """None: whatever model the cluster has (a cluster of one model)."""

    @model_validator(mode="after")
    def _no_empty_node(self) -> Self:
        if self.nodes > self.devices:
            raise ValueError("more nodes than devices")
        return self


class BidRow(Message):
    """What one placement would bring the job."""

    placement: Placement
    remaining_seconds: Seconds | None
    """Median time to the job's end from now on this placement; None: not measured yet."""
    sigma_log: Annotated[float, Field(ge=0, le=20)] = 0.0
    """Standard deviation of the logarithm of `remaining_seconds`."""
    restart_seconds: Seconds = 0.0
    """Cost of moving there from where the job is; 0 for where it is."""
    peak_bytes_per_device: Count | None = None
    information_seconds: Seconds = 0.0
    """What a visit there would be worth for the forecast."""


class StandingBid(Message):
    """One row for each allowed device count on one node; the current and the smallest always."""

    rows: Annotated[tuple[BidRow, ...], Field(min_length=1, max_length=256)]
    end_is_unknown: bool = False
    """The job has no limit it will surely reach: the policy's `unknown_end_seconds` stands in."""

    @model_validator(mode="after")
    def _one_row_each(self) -> Self:
        if len({row.placement for row in self.rows}) < len(self.rows):
            raise ValueError("two rows for one placement")
        return self


class Moments(Message):
    """Count, mean and sum of squared deviations; merges exactly. A count of 0 is no evidence."""

    count: Count = 0
    mean: float = 0.0
    m2: Annotated[float, Field(ge=0)] = 0.0


class StepStatistics(Message):
    """Steps of one placement and local batch, for the hardware's prior. Logs of seconds."""

    hardware: Identifier
    placement: Placement
    local_samples: Count
    gradient_bytes: Count
    log_step: Moments
    log_compute: Moments | None = None
    log_communication: Moments | None = None


class ProcessOnNode(Message):
    """A process by which a node proves that a lease's devices are empty."""

    node: Name
    pid: Annotated[int, Field(ge=1, le=2**31)]
    session: Annotated[int, Field(ge=0, le=2**31)]
    started: Count
    """Start time in clock ticks since boot: a reused pid is another process."""


class RegisterJob(Message):
    """`POST /v1/jobs` (with an `Idempotency-Key`)."""

    name: Name
    min_devices: DeviceCount = 1
    max_devices: DeviceCount = 1
    allowed_devices: Annotated[tuple[DeviceCount, ...], Field(max_length=256)] = ()
    """Device counts that keep the global batch; empty: every count in the range."""
    resume: Resume = Resume.ELASTIC
    stated_seconds: Seconds | None = None
    """For `resume: never`: how long the program says it needs."""
    priority: Annotated[float, Field(gt=0, le=100)] = 1.0
    wanted_devices: Annotated[tuple[Identifier, ...], Field(max_length=256)] = ()
    """Exactly these (a program that already sits on them); empty: any."""
    process: ProcessOnNode | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_devices > self.max_devices:
            raise ValueError("min_devices is larger than max_devices")
        if any(not self.min_devices <= n <= self.max_devices for n in self.allowed_devices):
            raise ValueError("allowed_devices must lie between min_devices and max_devices")
        if self.resume is Resume.NEVER and self.stated_seconds is None:
            raise ValueError("resume 'never' needs stated_seconds")
        return self


class LeaseRef(Message):
    lease: Identifier
    fence: Count


class JobReport(Message):
    """`POST /v1/jobs/{id}/report`, a long poll; every report renews the ttl of its leases."""

    incarnation: Count
    """Start number of the reporting supervisor: a new one begins a new row of sequences."""
    sequence: Count
    """Rises with every report; older ones are ignored. Stands for an idempotency key."""
    state: JobState
    step: Count = 0
    planned_steps: Count | None = None
    fraction_done: Fraction = 0.0
    steady_steps: Count = 0
    """Steps measured on the present devices after warm-up."""
    devices_in_use: Annotated[tuple[Identifier, ...], Field(max_length=4096)] = ()
    """Devices the running segment sits on."""
    notice_seconds: Seconds = 0.0
    """95th percentile of the longest unbreakable stretch, plus a save."""
    idle_seconds: Seconds = 0.0
    """Since the last optimiser step, validation or checkpoint."""
    leases: Annotated[tuple[LeaseRef, ...], Field(max_length=256)] = ()
    bid: StandingBid | None = None
    """Only when it changed."""
    allowed_devices: Annotated[tuple[DeviceCount, ...], Field(max_length=256)] | None = None
    """When the script's fit became known; None: unchanged."""
    statistics: Annotated[tuple[StepStatistics, ...], Field(max_length=64)] = ()
    forecast: Forecast | None = None
    """The job's own, `as_now`."""
    forecast_width: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """By what past scores made the interval of `forecast` wider or narrower (log); 1: by nothing."""
    wait_seconds: Annotated[float, Field(ge=0, le=60)] = 0.0
    """How long the answer may be held back while nothing changes."""
    seen: Count = 0
    """`version` of the instructions the job has: the answer comes at once when it is older."""


class ReleaseDevices(Message):
    """`POST /v1/leases/{id}/release`: the job has left these devices."""

    fence: Count
    devices: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=4096)]
    reason: Text = ""
    checkpoint_step: Count | None = None


class EndJob(Message):
    """`POST /v1/jobs/{id}/end`."""

    outcome: Outcome
    reason: Text = ""
    finished_ago_seconds: Seconds = 0.0
    """Since the training came to its own end: what came later (leaving, telling) was not forecast."""
    statistics: Annotated[tuple[StepStatistics, ...], Field(max_length=64)] = ()
    """The last word on its steps."""


class ControlJob(Message):
    """`POST /v1/jobs/{id}/control`, by the job's owner or an administrator."""

    action: Literal["pause", "resume", "stop", "set_devices", "set_priority", "give_back"]
    min_devices: DeviceCount | None = None
    max_devices: DeviceCount | None = None
    priority: Annotated[float, Field(gt=0, le=100)] | None = None


# --- broker -> job -----------------------------------------------------------------------


class Forecast(Message):
    """When a job will be done, in seconds from now, and on what assumption."""

    p10_seconds: Seconds
    p50_seconds: Seconds
    p90_seconds: Seconds
    assumption: Literal["as_now", "look_ahead"]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.p10_seconds <= self.p50_seconds <= self.p90_seconds:
            raise ValueError("quantiles out of order")
        return self


class ForecastScores(Message):
    """How the last forecasts of an account's jobs came out, of those that ran to their own end.

    A new job of the account may widen its intervals by it before it has an end of its own.
    """

    made: Count = 0
    """Forecasts that could be held against an end; 0: none yet."""
    held: Count = 0
    """Of them, those where the end came between the 10 and the 90 % quantile: 80 % expected."""
    resized: Count = 0
    """Of them, those after which the job's devices changed, which `as_now` leaves out."""
    jobs: Count = 0
    """Of so many jobs."""
    runs: Annotated[
        tuple[Annotated[tuple[Deviation, ...], Field(max_length=64)], ...], Field(max_length=64)
    ] = ()
    """Of each job, oldest first, its forecasts whose devices stayed: how many standard deviations, of
    the logarithm and before any recalibration, what came lay above the median."""


class LeasedDevice(Message):
    """One device as a job must know it."""

    id: Identifier
    node: Name
    index: Count
    """What nvidia-smi calls it; for people only, never a key."""
    model: Identifier
    kind: Literal["gpu", "cpu"]
    cores: tuple[int, ...] = ()
    """Of a CPU slot."""


class LeaseInstruction(Message):
    """One lease as it stands."""

    lease: Identifier
    fence: Count
    ttl_seconds: Seconds
    term_seconds: Seconds
    """Until its devices are auctioned again."""
    devices: tuple[LeasedDevice, ...]
    leave: tuple[Identifier, ...] = ()
    """Of `devices`, those to be left ..."""
    within_seconds: Seconds | None = None
    """... within this time."""


class Instructions(Message):
    """The broker's whole word to a job, in every answer to a report."""

    job: Identifier
    incarnation: Count
    """Of the broker."""
    version: Count
    """Rises when anything but the clocks changed."""
    state: JobState
    leases: tuple[LeaseInstruction, ...] = ()
    order: Literal["go_on", "pause", "stop"] = "go_on"
    visit: bool = False
    """The present lease is a first visit: measure, then bid."""
    rho: Annotated[float, Field(ge=0)] | None = None
    forecast: Forecast | None = None
    next_report_seconds: Seconds = 10.0
    max_notice_seconds: Seconds = 120.0
    reasons: tuple[Text, ...] = ()
    """Why the job has what it has, newest last, for people."""


class JobRegistered(Message):
    """Answer to `POST /v1/jobs`."""

    job: Identifier
    instructions: Instructions
    forecast_scores: ForecastScores | None = None
    """How the account's earlier forecasts came out."""


class Accepted(Message):
    """Answer to calls whose effect is all there is to say."""

    detail: Text = ""


# --- node -> broker ----------------------------------------------------------------------


class DeviceProcess(Message):
    """A process seen on a device."""

    pid: Annotated[int, Field(ge=0, le=2**31)]
    started: Count
    session: Count = 0
    """Session it belongs to; 0 where it cannot be told."""
    account: Name | None
    """Owner's name; None where it cannot be told."""
    used_bytes: Count | None = None
    command: Annotated[str, StringConstraints(max_length=64)] = ""
    """Name of its program; never the arguments, which may hold secrets. Empty where it cannot be told."""
    parents: Annotated[tuple[Count, ...], Field(max_length=16)] = ()
    """Pids of those it descends from, the nearest first; views leave them out."""


class DeviceReport(Message):
    """One device as its node sees it now."""

    id: Identifier
    index: Count
    model: Identifier
    kind: Literal["gpu", "cpu"]
    cores: tuple[int, ...] = ()
    memory_bytes: Count | None = None
    memory_used_bytes: Count | None = None
    utilisation: Fraction | None = None
    processes: Annotated[tuple[DeviceProcess, ...], Field(max_length=1024)] = ()
    state: Literal["empty", "occupied", "unknown", "sick"]
    """`unknown` is never `empty`."""
    since_seconds: Seconds = 0.0
    """How long it has been in this state."""
    detail: Text = ""


class NodeReport(Message):
    """`POST /v1/nodes/{name}/report`: whole, every time."""

    incarnation: Count
    sequence: Count
    devices: Annotated[tuple[DeviceReport, ...], Field(max_length=1024)]
    ended_leases: tuple[Identifier, ...] = ()
    """Leases whose processes are proven gone on this node."""


class WatchedProcess(Message):
    """A job's process of which a node is to say when it is gone."""

    lease: Identifier
    process: ProcessOnNode


class NodeInstructions(Message):
    """Answer to a node's report."""

    next_report_seconds: Seconds
    watched_leases: tuple[Identifier, ...] = ()
    """Leases whose devices stay quarantined until the node names them in `ended_leases`."""
    watched: tuple[WatchedProcess, ...] = ()
    """Their processes; a lease without one here has none on this node."""


# --- views for people --------------------------------------------------------------------


class DeviceSpan(Message):
    """A job on a set of devices for a while; seconds since the job registered."""

    devices: tuple[Identifier, ...]
    from_seconds: Seconds
    to_seconds: Seconds | None = None


class JobView(Message):
    """A job for its owner or an administrator."""

    job: Identifier
    name: Name
    account: Name
    state: JobState
    outcome: Outcome | None = None
    devices: tuple[LeasedDevice, ...] = ()
    min_devices: DeviceCount
    max_devices: DeviceCount
    resume: Resume
    priority: float
    step: Count = 0
    planned_steps: Count | None = None
    fraction_done: Fraction = 0.0
    age_seconds: Seconds
    idle_seconds: Seconds = 0.0
    share: float = 0.0
    rho: float | None = None
    forecast: Forecast | None = None
    starts: Forecast | None = None
    """Of a job that waits: when it is expected to have devices."""
    ends: Forecast | None = None
    """When it is expected to have ended, by the broker's look-ahead; `forecast` is the job's own."""
    term_seconds: Seconds | None = None
    bid: StandingBid | None = None
    history: tuple[DeviceSpan, ...] = ()
    reasons: tuple[Text, ...] = ()
    """Why it has what it has, newest last."""
    reason_ages_seconds: tuple[Seconds, ...] = ()
    """How long ago each reason was given, newest last; of the oldest reasons some may be missing."""


class DeviceView(Message):
    """A device for anyone; who holds it only as an account."""

    id: Identifier
    node: Name
    index: Count
    model: Identifier
    kind: Literal["gpu", "cpu"]
    state: DeviceState
    since_seconds: Seconds
    cores: tuple[int, ...] = ()
    """Of a CPU slot."""
    account: Name | None = None
    detail: Text = ""
    free_when: Text = ""
    """What must happen before it is offered again; empty: nothing, or its holder leaves it in time."""
    memory_bytes: Count | None = None
    memory_used_bytes: Count | None = None
    utilisation: Fraction | None = None
    processes: Annotated[tuple[DeviceProcess, ...], Field(max_length=64)] = ()
    """What its node sees on it, those with the most memory first; strangers' among them."""
    strangers: Annotated[tuple[Count, ...], Field(max_length=64)] = ()
    """Pids of those that are known to belong to no lease."""


class ClusterView(Message):
    """`GET /v1/cluster`."""

    policy: Name
    devices: tuple[DeviceView, ...]
    waiting_jobs: Count
    running_jobs: Count
    next_tick_seconds: Seconds
    incarnation: Count
    newcomers_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """Jobs that the look-ahead expects to come, by those of late; 0: it plays none."""


class AwardView(Message):
    """What an auction decided for one job, and why. Others' rows carry no bid."""

    job: Identifier
    account: Name
    considered: bool
    devices: Count
    device_ids: tuple[Identifier, ...] = ()
    rho_before: float | None = None
    rho_after: float | None = None
    payment: Fraction | None = None
    """Themis's hidden payment c: the share of its value that the job would keep."""
    term_part: Fraction | None = None
    """The part of its term that this leaves it, where payments are charged."""
    reason: Text


class AuctionView(Message):
    """`GET /v1/auctions/{n}`."""

    number: Count
    ago_seconds: Seconds
    trigger: Literal["tick", "device_free", "arrival", "visit", "fixed"]
    policy: Name
    awards: tuple[AwardView, ...]
    welfare_gap: Annotated[float, Field(ge=0)] | None = None
    """Proved bound on the distance from the optimum; 0 = exact."""
    reason: Text = ""


class ForecastScore(Message):
    """One past forecast against what came."""

    job: Identifier
    made_ago_seconds: Seconds
    forecast: Forecast
    actual_seconds: Seconds | None
    """Until the job's own end; None: it has not come to it, or it cannot be told."""
    held: bool | None
    """Whether the job kept its devices from then on."""
    covered: bool | None = None
    """Whether the end came between the 10 and the 90 % quantile."""
    name: Name | None = None
    """Of the job."""


class FormFigure(Message):
    """One parameter of the step-time form, as other jobs let expect it of a new one."""

    name: Name
    mean: Annotated[float, Field(ge=-1e3, le=1e3)]
    sigma: Annotated[float, Field(gt=0, le=20)]


class FormPrior(Message):
    """The step-time form (`core/step_form`) on one kind of hardware, learned from many jobs."""

    version: Literal[1] = 1
    figures: Annotated[tuple[FormFigure, ...], Field(min_length=1, max_length=64)]
    widths: Annotated[tuple[Annotated[float, Field(ge=0.05, le=20)], ...], Field(max_length=64)] = ()
    """Factors on the intervals, by which they held on jobs left out; empty: none."""


class HardwarePrior(Message):
    """`GET /v1/hardware/{name}/prior`: what is known of a kind of hardware from all jobs on it."""

    version: Literal[1] = 1
    hardware: Identifier
    jobs: Count
    """Jobs whose statistics are in it."""
    latency_seconds: Seconds
    bandwidth_bytes_per_second: Annotated[float, Field(gt=0)]
    contention: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Slow-down of compute per further device on the node, as a fraction."""
    sigma_log: Annotated[float, Field(gt=0, le=5)] = 0.5
    form: FormPrior | None = None
    """What a fit over many jobs gave; None: only the figures above are known."""


class LearnedHardware(Message):
    """What a broker has learned of a kind of hardware, for an administrator."""

    hardware: Identifier
    reporting_jobs: Count
    """Jobs whose statistics of it are kept."""
    placements: Count
    """Different placements among them."""
    steps: Count
    """Steps behind them."""
    learned_ago_seconds: Seconds | None = None
    """Since its prior was last learned; None: it is the built-in one."""
    prior: HardwarePrior
    """As new jobs get it."""


class WhatIf(Message):
    """`POST /v1/forecast`: when would a job end if it had this many devices, or if others ended."""

    job: Identifier | None = None
    """A live job; None: your newest one, or one that does not exist yet, where `seconds` says how long."""
    devices: Annotated[tuple[DeviceCount, ...], Field(max_length=8)] = ()
    """Counts, each asked about by itself."""
    seconds: Annotated[tuple[tuple[DeviceCount, Seconds], ...], Field(max_length=8)] = ()
    """Of a job that would be started now: its whole run on each count that it may have."""
    doubts_log: Annotated[
        tuple[tuple[DeviceCount, Annotated[float, Field(ge=0, le=4)]], ...], Field(max_length=8)
    ] = ()
    """By how much `seconds` may be off on single counts, besides what a person's word is unsure: standard
    deviation of the logarithm. A count that lacks: 0."""
    without: Annotated[tuple[Identifier, ...], Field(max_length=64)] = ()
    """As if these had ended: jobs that you may see, or accounts with all their jobs."""


class WhatIfLine(Message):
    """One way it could be, played forward by the broker's policy."""

    devices: DeviceCount | None = None
    """On so many and no others; None: on whatever it gets."""
    starts: Forecast | None = None
    """When it has its devices; None: not with the devices that there are."""
    ends: Forecast | None = None


class WhatIfAnswer(Message):
    forecasts: tuple[tuple[DeviceCount, Forecast], ...]
    """If it had so many devices from now on to its end, by the job's own bid."""
    reason: Text = ""
    ahead: tuple[WhatIfLine, ...] = ()
    """Under contention: as things are, then for each of the counts asked about."""
    is_measured: bool = True
    """Whether the job has measured itself; else its times are a guess."""
    newcomers_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """Jobs that `ahead` expects to come, by those of late; 0: it plays none."""


# --- administration ----------------------------------------------------------------------


class ClaimsHeld(Message):
    """How the times that an account's jobs claimed came out, beside what they took."""

    jobs: Count
    """So many were compared."""
    took_over_claimed: Annotated[float, Field(gt=0)]
    """Time taken over time claimed, on a job's fewest devices: the mean, shrunk towards 1, the newest
    jobs counting most. New claims are multiplied with it."""
    doubling_over_claimed: Annotated[float, Field(gt=0)]
    """How this grows with each doubling of the devices: above 1, its jobs scale worse than it says."""
    spread_log: Annotated[float, Field(ge=0)]
    """Standard deviation of its logarithm from job to job."""


class AccountView(Message):
    account: Name
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    max_devices: DeviceCount | None = None
    admin: bool = False
    disabled: bool = False
    held_devices: Count = 0
    used_device_seconds: Annotated[float, Field(ge=0)] = 0.0
    debt_device_seconds: Annotated[float, Field(ge=0)] = 0.0
    forecast_scores: ForecastScores | None = None
    """How the forecasts of its jobs came out."""
    claims: ClaimsHeld | None = None
    """How the times that its jobs claimed came out; None: nothing could be compared yet."""


class SetAccount(Message):
    """`PUT /v1/admin/accounts/{name}`; what is None stays as it is."""

    weight: Annotated[float, Field(gt=0, le=1000)] | None = None
    max_devices: DeviceCount | None = None
    lift_max_devices: bool = False
    admin: bool | None = None
    disabled: bool | None = None


class TokenIssued(Message):
    """The only time a token is shown."""

    token_id: Identifier
    account: Name
    token: str


class IssueToken(Message):
    """`POST /v1/admin/accounts/{name}/tokens`."""

    node: Name | None = None
    """The token may do nothing but report for this node."""


class TokenView(Message):
    """A token without its secret."""

    token_id: Identifier
    account: Name
    node: Name | None = None
    age_seconds: Seconds
    revoked: bool = False


class LeaseView(Message):
    """A lease for an administrator."""

    lease: Identifier
    fence: Count
    job: Identifier
    name: Name
    account: Name
    devices: tuple[Identifier, ...]
    term_seconds: Seconds
    silent_seconds: Seconds
    """Since the job's last report."""
    idle_seconds: Seconds = 0.0
    """Since the job's last step, validation or checkpoint."""
    end_reason: Text = ""


class PolicyView(Message):
    """`GET /v1/policy`: by which rule and with which times the broker decides."""

    policy: Name
    settings: tuple[tuple[Name, float], ...]


class AuditEntry(Message):
    ago_seconds: Seconds
    account: Name | None
    action: Text
    subject: Text
    detail: Text = ""


JobReport.model_rebuild()


def json_schema() -> dict[str, Any]:
    """JSON schema of every message, by name: what other languages' types are generated from."""
    from pydantic.json_schema import models_json_schema

    kinds = [kind for kind in Message.__subclasses__() if kind.__module__ == __name__]
    return models_json_schema([(kind, "validation") for kind in kinds])[1]
