"""That tests in a browser are left out is seen where everything has to be there."""

from __future__ import annotations

import pytest

from browser.conftest import needs


@pytest.mark.parametrize("ci", ["true", "1"])
def test_where_everything_has_to_be_there_what_is_missing_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    needs("chromium", "it is there")
    with pytest.raises(pytest.fail.Exception, match="no Chromium"):
        needs(None, "no Chromium")


@pytest.mark.parametrize("ci", ["", "false"])
def test_elsewhere_it_is_a_test_left_out(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match="no Chromium"):
        needs(None, "no Chromium")
