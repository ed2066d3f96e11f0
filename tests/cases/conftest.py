"""Trainings in this process run quietly on one thread, as those of tests/elastic do."""

from __future__ import annotations

from elastic.conftest import _one_thread_and_quiet as _one_thread_and_quiet
