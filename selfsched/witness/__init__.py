"""An independent record of what was trained: which samples, at which loss, to which weights.

`selfsched demo` and `selfsched verify` do not believe the launcher about its own work. They
let Lightning itself load a plain callback into every rank (its entry point
`lightning.pytorch.callbacks_factory`), which writes down what reached the module. So the
watched script needs no change, and nothing of `selfsched.elastic` takes part in the record.
"""
