"""What the commands of `selfsched` do; `selfsched.cli` has their options. Each loads what it needs."""
