"""`POST what-if`: when a run would be done if it were started now, from what its user can say of it.

How long such a run takes on each device count, and how sure that is, is reckoned by the rules of
`selfsched forecast` (`selfsched.core.whole_run`); when it would start and end beside all others is the
broker's answer. The broker is asked as the user, for this as for everything else.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Self

from pydantic import Field, model_validator

from selfsched.core.whole_run import MOST_COUNTS, WholeRun, run_by_hours, run_like
from selfsched.errors import Refused
from selfsched.protocol import DeviceCount, Identifier, JobView, Message, WhatIf, WhatIfAnswer, parse
from selfsched_jupyter.allowed import BrokerCall, NotForwarded, Route, call_of, message_of
from selfsched_jupyter.answers import Answer, OwnCode, trouble
from selfsched_jupyter.room import Room

_FORECAST = Route(method="POST", path="forecast", gives=WhatIfAnswer)
"""Not among the calls that are forwarded: the browser cannot put this question by itself."""
_LONGEST_REASON = 2000


class RunQuestion(Message):
    """A run that does not exist yet: one that takes so many hours, or one like a job."""

    hours: float | None = None
    """It takes, on `on` devices."""
    on: DeviceCount = 1
    like: Identifier | None = None
    """Id of a job of the user's, also of one that has ended."""
    devices: Annotated[tuple[DeviceCount, ...], Field(min_length=1, max_length=MOST_COUNTS)]
    """Counts, each asked about by itself; those that such a run cannot have are told, not answered."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if (self.hours is None) == (self.like is None):
            raise ValueError("either hours or like says how long the run takes")
        return self


async def answer_to(room: Room, body: bytes) -> Answer:
    """The broker's `WhatIfAnswer`, or what kept it from being asked or answered.

    Args:
        room: with the broker in use.
        body: of the request, a `RunQuestion`.
    """
    try:
        question = message_of(RunQuestion, body)
        if question.like is None:
            return await _foresee(room, question, _by_hours(question))
        found = await room.get(call_of("GET", f"jobs/{question.like}", ""), None)
        if not found.is_news:
            return found
        return await _foresee(room, question, run_like(parse(JobView, found.body)))
    except NotForwarded as refused:
        return trouble(refused.status, refused.code, refused.detail)
    except Refused as refused:
        return trouble(HTTPStatus.UNPROCESSABLE_ENTITY, OwnCode.NOT_FORESEEABLE, str(refused))


def _by_hours(question: RunQuestion) -> WholeRun:
    most = max(question.on, *question.devices)
    return run_by_hours(question.hours or 0.0, question.on, most, question.devices)


async def _foresee(room: Room, question: RunQuestion, run: WholeRun) -> Answer:
    """Ask the broker about the counts that the run may have.

    Raises:
        Refused: it may have none of them.
    """
    possible = run.possible(question.devices)
    if not possible:
        raise Refused(run.counts_words())
    asked = WhatIf(devices=possible, seconds=run.times, doubts_log=run.doubts)
    answer = await room.ask(BrokerCall(route=_FORECAST, path="/v1/forecast", body=asked.to_json()))
    if not answer.is_news or set(possible) == set(question.devices):
        return answer
    told = parse(WhatIfAnswer, answer.body)
    reason = f"{told.reason}; {run.counts_words()}"[:_LONGEST_REASON]
    whole = told.model_copy(update={"reason": reason})
    return Answer(status=HTTPStatus.OK, body=whole.to_json().encode())
