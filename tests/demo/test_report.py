"""The report is one file that needs nothing else, and shows words from elsewhere as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from demo.stories import a_forecast, a_story

from selfsched.demo.report import FILE_NAME, render, write_report
from selfsched.demo.telling import ERROR_WORDS, RHO_WORDS, account_in_words


class Outline(HTMLParser):
    """Tags of a page, and what it would fetch from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.fetched.append(value or "")


def outline(html: str) -> Outline:
    parsed = Outline()
    parsed.feed(html)
    return parsed


def test_the_report_is_one_file_with_five_pictures_that_fetches_nothing(tmp_path: Path) -> None:
    path = write_report(a_story(), tmp_path / "deep" / "down")
    assert path == tmp_path / "deep" / "down" / FILE_NAME
    page = outline(path.read_text())
    assert page.tags.count("svg") == 5
    assert page.fetched == []
    assert "script" not in page.tags


def test_a_reason_is_shown_as_text_never_as_markup() -> None:
    html = render(a_story())
    assert "&lt;b&gt;not measured&lt;/b&gt;" in html
    assert "<b>not measured" not in html


def test_segments_and_errors_stand_in_the_tables() -> None:
    html = render(a_story())
    assert "2 → 1 → 2" in html
    assert "10%" in html
    assert "1.82 times" in html


@pytest.mark.parametrize("changes", [{"live_leases": 2}, {"jobs": ()}])
def test_what_went_wrong_is_said_first(changes: dict[str, object]) -> None:
    if "jobs" in changes:
        told = a_story().jobs
        changes = {"jobs": (told[0].model_copy(update={"sample_faults": ("epoch 3: 5 samples never seen",)}),
                            told[1])}  # fmt: skip
    html = render(a_story(**changes))
    found = re.findall(r'<p class="bad">([^<]*)</p>', html)
    assert found in (["2 leases were still live at the end"], ["notebook: epoch 3: 5 samples never seen"])


def test_a_job_that_never_measured_anything_can_still_be_reported() -> None:
    story = a_story()
    bare = [told.model_copy(update={"losses": (), "steps": (), "rho_over_time": ()}) for told in story.jobs]
    assert outline(render(a_story(jobs=tuple(bare)))).tags.count("svg") == 5


def test_the_error_of_a_forecast_is_relative_to_what_was_left() -> None:
    assert a_forecast().error() == pytest.approx(0.1)
    assert a_forecast(made_at_s=120.0).error() == 0.0


def test_the_words_of_an_account_are_explained_where_they_are_used() -> None:
    html, told = render(a_story()), list(account_in_words(a_story()))
    for words in (ERROR_WORDS, RHO_WORDS):
        assert told.count(words) == 1
        assert html.count(words) == 1
    unmeasured = [job.model_copy(update={"rho": None, "forecasts": ()}) for job in a_story().result.jobs]
    result = a_story().result.model_copy(update={"jobs": tuple(unmeasured)})
    assert not {ERROR_WORDS, RHO_WORDS} & set(account_in_words(a_story(result=result)))
