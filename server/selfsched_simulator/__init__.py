"""Replays a trace of jobs in virtual time against the broker's own arbiter and policies."""
