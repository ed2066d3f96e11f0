"""A rank's own program: run the user's script in a fork of the zygote, or a pickled fit.

Whatever the program raises is told to the supervisor as an event, which shows it once;
whatever way it ends, the process ends with the exit code a fresh interpreter would have.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import runpy
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from selfsched.core.events import RankRaised, RankRefused
from selfsched.elastic.events import EventWriter
from selfsched.elastic.raised import to_tell
from selfsched.elastic.segment import SegmentSpec
from selfsched.errors import EXIT_FAILED, EXIT_WRONG_USE, Refused

_INTERRUPTED = 130


def main() -> None:
    """A cold rank of a payload: `python -m selfsched.elastic.worker`, in its rank's environment."""
    from selfsched.launch.parenthood import tie_workers

    tie_workers()
    _end(_guarded(_run_payload))


def run_forked(request: Mapping[str, Any]) -> NoReturn:
    """A rank in a fork of the zygote that has been set up as its own process."""
    _set_threads(int(request["threads"]))
    program, arguments = request["program"], list(request["arguments"])
    match program:
        case "script":
            _end(_guarded(lambda: _run_script(arguments)))
        case "module":
            _end(_guarded(lambda: _run_module(arguments)))
        case "payload":
            sys.path[:] = request["import_path"] or sys.path
            _end(_guarded(_run_payload))
        case _:
            raise AssertionError(f"the zygote cannot run a {program}")


def _set_threads(threads: int) -> None:
    """As many threads as the rank has cores; and fresh noise, which forks would share."""
    import numpy
    import torch

    torch.set_num_threads(threads)
    numpy.random.seed()


def _run_script(arguments: list[str]) -> None:
    script = arguments[0]
    sys.argv = arguments
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def _run_module(arguments: list[str]) -> None:
    sys.argv = arguments  # run_module puts the module's file in place of its name
    sys.path.insert(0, os.getcwd())
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _run_payload() -> None:
    from selfsched.callback import SelfScheduler
    from selfsched.elastic import hooks
    from selfsched.elastic.job import JobDescription
    from selfsched.elastic.payload import know_sources, read_payload
    from selfsched.elastic.results import write_result
    from selfsched.elastic.run_directory import RunDirectory

    spec = SegmentSpec.from_environment()
    if spec is None:
        raise Refused("this program is started by a selfsched supervisor only")
    directory = RunDirectory(spec.run_directory)
    job = JobDescription.read(spec.run_directory)
    if job.import_path:
        sys.path[:] = job.import_path
    package = importlib.import_module(job.package)
    hooks.install(spec)  # a callback that travelled here was not constructed here
    payload = read_payload(directory.payload)
    know_sources(payload.sources)
    arguments = dict(payload.trainer_arguments)
    callbacks = list(arguments.pop("callbacks", None) or [])
    ours = [callback for callback in callbacks if isinstance(callback, SelfScheduler)]
    for callback in ours:
        callback.segment = spec
    if not ours:
        callbacks.insert(0, SelfScheduler())
    if spec.ordinal > 0:  # said in the first segment
        arguments["enable_model_summary"] = False
        logging.getLogger(job.package).setLevel(logging.WARNING)
    trainer = package.Trainer(callbacks=callbacks, **arguments)
    trainer.fit(
        payload.module, payload.train_dataloaders, payload.val_dataloaders,
        datamodule=payload.datamodule, ckpt_path=payload.ckpt_path,
    )
    if trainer.is_global_zero:
        write_result(trainer, payload.module, directory.result)


def _guarded(program: Callable[[], None]) -> int:
    """Run it; the exit code a fresh interpreter would end with. What it raised is reported."""
    try:
        program()
    except SystemExit as leaving:
        return _exit_code(leaving)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Refused as refused:
        _report(RankRefused(rank=_rank(), message=str(refused)))
        return EXIT_WRONG_USE
    except BaseException as error:  # noqa: BLE001 - the outermost frame of a process
        _report(to_tell(error, _rank()))
        return EXIT_FAILED
    return 0


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return EXIT_FAILED


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _report(event: RankRaised | RankRefused | None) -> None:
    spec = SegmentSpec.from_environment()
    if spec is None or event is None:
        return
    writer = EventWriter(spec.events_socket)
    writer.send(event)
    writer.close()


def _end(code: int) -> NoReturn:
    """End as an interpreter would, without taking torch apart, which costs half a second."""
    for finish in (getattr(threading, "_shutdown", None), getattr(atexit, "_run_exitfuncs", None)):
        with suppress(Exception):  # what fails at exit has nobody left to tell
            if finish is not None:
                finish()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
