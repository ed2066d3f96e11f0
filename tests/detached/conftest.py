"""Runs in a directory of their own, with device locks of their own, one thread a rank."""

from __future__ import annotations

from supervisor.conftest import runs as runs
