"""`selfsched doctor`: what goes wrong first on a machine, and what to do about it."""
