"""A demo that never ran: for tests of the report and the account."""

from __future__ import annotations

from selfsched.demo.result import (
    Decision,
    DemoForecast,
    DemoJob,
    DemoResult,
    DemoSegment,
    DemoStory,
    JobStory,
    LossPoint,
    StepParts,
)


def a_forecast(**changes: object) -> DemoForecast:
    """A forecast that came out 10 % wrong, with changes."""
    values: dict[str, object] = {
        "at": 0.25,
        "made_at_s": 20.0,
        "devices": 2,
        "assumption": "as_now",
        "allocation_held": True,
        "predicted_finish_s": 110.0,
        "low_s": 95.0,
        "high_s": 130.0,
        "actual_finish_s": 120.0,
    }
    return DemoForecast.model_validate(values | changes)


def a_story(**changes: object) -> DemoStory:
    """A finished demo of two jobs, with changes to its story."""
    notebook = DemoJob(
        name="digits",
        account="notebook",
        finished=True,
        rho=0.8,
        samples_seen_once=True,
        segments=(
            DemoSegment(devices=2, start_s=1.0, end_s=20.0, steps=100),
            DemoSegment(devices=1, start_s=21.0, end_s=60.0, steps=110),
            DemoSegment(devices=2, start_s=61.0, end_s=120.0, steps=300),
        ),
        forecasts=(a_forecast(), a_forecast(assumption="look_ahead", predicted_finish_s=121.0)),
    )
    script = DemoJob(
        name="chars", account="script", finished=True, rho=None, samples_seen_once=True,
        segments=(DemoSegment(devices=1, start_s=0.5, end_s=38.0, steps=400),), forecasts=(),
    )  # fmt: skip
    losses = tuple(
        LossPoint(samples=512 * (n + 1), loss=1 / (n + 1), devices=2 if n < 5 else 1) for n in range(9)
    )
    parts = {"forward": 0.02, "backward": 0.05, "communication": 0.01}
    values: dict[str, object] = {
        "result": DemoResult(jobs=(notebook, script), speedup_two_devices=1.82),
        "jobs": (
            JobStory(
                account="notebook", registered_s=0.0, losses=losses,
                steps=(StepParts(devices=2, steps=390, step_seconds=0.08, parts=parts),),
                rho_over_time=((5.0, 0.6), (30.0, 0.8)),
            ),
            JobStory(account="script", registered_s=21.0),
        ),
        "decisions": (
            Decision(at_s=21.0, auction=3, trigger="visit", account="script", devices=1,
                     reason="first visit: <b>not measured</b> yet"),
        ),
        "wall_s": 150.0,
        "started": "a day",
        "machine": "two cores",
    }  # fmt: skip
    return DemoStory.model_validate(values | changes)
