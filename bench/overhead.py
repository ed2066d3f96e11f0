"""What the callback costs a training loop: `python -m bench.overhead [--json] [--quick]`.

One process, two Trainers' loops of the same module with steps of about ten milliseconds,
one with the callback (its model, logger and progress bar on), one without, in alternating
blocks: neighbours on the machine disturb both alike. Each block gives the mean of its
cycles, wall-clock from one step's end to the next: a median would hide what happens once in
fifty steps, which is when the model is updated. The ratio is the median over the pairs of
neighbouring blocks, its interval a bootstrap over pairs.

The picture is drawn in the kernel's process while ranks train in theirs (`bench._cell_beside`): a
second such ratio compares the loop with the callback while a cell beside it is drawn and while none is.

Its memory is what a process has more of that trained with it and then took over a hundred
thousand more steps, imports included (`bench._callback_memory`): the median of some pairs of
processes.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench._callback_memory import added_bytes

STEP_SECONDS = 0.010
BLOCK_STEPS = 150
SKIPPED_STEPS = 25
"""Of each block: warm-up."""
PAIRS = 20
MEMORY_PAIRS = 3
MEMORY_FIT_STEPS = 1000
FED_STEPS = 100_000


@dataclass(frozen=True)
class Ratio:
    """Median over pairs of blocks, and 10-90 % of its bootstrap."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Overhead:
    """Result; `ratio` is with / without the callback."""

    step_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    """10-90 % of the bootstrap."""
    memory_mb: float | None
    """What the callback adds to the resident memory of its process, in 10^6 bytes; None: not measured."""
    picture: Ratio
    """The loop with the callback: while a cell's picture is drawn beside it / while none is."""
    picture_core: float
    """Part of one core that drawing took."""


def measure(
    pairs: int = PAIRS,
    block_steps: int = BLOCK_STEPS,
    step_seconds: float = STEP_SECONDS,
    *,
    memory_pairs: int = MEMORY_PAIRS,
    fed_steps: int = FED_STEPS,
) -> Overhead:
    """Run `pairs` pairs of blocks and compare them.

    Args:
        pairs: blocks with and blocks without the callback.
        block_steps: steps of a block.
        step_seconds: time a step is busy.
        memory_pairs: processes with and processes without the callback.
        fed_steps: steps that the model takes over before its memory is looked at.
    """
    steps: list[float] = []
    with tempfile.TemporaryDirectory() as directory:

        def block(with_callback: bool) -> float:
            return _block(with_callback, block_steps, step_seconds, directory)

        block(True)  # imports, first allocations
        callback = _paired(pairs, block, steps)
        with _Drawing(step_seconds) as drawing:

            def beside(is_drawn: bool) -> float:
                with drawing.beside() if is_drawn else nullcontext():
                    return block(True)

            picture = _paired(pairs, beside, [])
    added = [added_bytes(MEMORY_FIT_STEPS, fed_steps) for _ in range(memory_pairs)]
    return Overhead(
        step_ms=1e3 * float(np.median(steps)),
        ratio=callback.ratio,
        ratio_low=callback.low,
        ratio_high=callback.high,
        memory_mb=1e-6 * float(np.median(added)) if added else None,
        picture=picture,
        picture_core=drawing.core,
    )


def _paired(pairs: int, block: Callable[[bool], float], without: list[float]) -> Ratio:
    """Blocks with and without in turns; `without` is told the seconds of those without."""
    ratios = []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        cycles = {flag: block(flag) for flag in order}
        ratios.append(cycles[True] / cycles[False])
        without.append(cycles[False])
    low, high = _bootstrap(ratios)
    return Ratio(float(np.median(ratios)), low, high)


def _bootstrap(ratios: Sequence[float]) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, size=(2000, len(ratios))), axis=1)
    return float(np.quantile(medians, 0.1)), float(np.quantile(medians, 0.9))


class _Drawing:
    """A cell's picture in a process of its own, which stands still but where it is asked for."""

    def __init__(self, step_seconds: float) -> None:
        self._command = [sys.executable, "-m", "bench._cell_beside", str(step_seconds)]
        self._wall_seconds = 0.0
        self.core = 0.0
        """Part of one core that it took while it drew, once it has ended."""

    def __enter__(self) -> _Drawing:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # its imports are over
        self._process.send_signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGCONT)
        said, _stderr = self._process.communicate("\n")
        self.core = float(said) / self._wall_seconds if self._wall_seconds else 0.0

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Drawn for as long as this is open."""
        began = time.perf_counter()
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)
            self._wall_seconds += time.perf_counter() - began


def _block(with_callback: bool, steps: int, step_seconds: float, directory: str) -> float:
    """Mean cycle of one fit, in seconds."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import CSVLogger

    from selfsched import SelfScheduler

    clock = _EndOfSteps()
    callbacks: list[Any] = [SelfScheduler(explain=False)] if with_callback else []
    trainer = Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        logger=CSVLogger(directory, flush_logs_every_n_steps=1000),
        log_every_n_steps=50,
        callbacks=[*callbacks, clock.as_callback()],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=True,
    )
    trainer.fit(busy_module(step_seconds), train_loader())
    return float(np.diff(clock.ends)[SKIPPED_STEPS:].mean())


class _EndOfSteps:
    """Notes the instant at which each batch's hooks are through."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def as_callback(self) -> Any:
        from lightning.pytorch import Callback

        ends = self.ends

        class EndOfSteps(Callback):  # type: ignore[misc]
            def on_train_batch_end(self, *_: Any, **__: Any) -> None:
                ends.append(time.perf_counter())

        return EndOfSteps()


def busy_module(step_seconds: float) -> Any:
    """A LightningModule whose step takes so long and little more."""
    import torch
    from lightning.pytorch import LightningModule

    class Busy(LightningModule):  # type: ignore[misc]
        """Waits like for a device, then trains a tiny layer: a step of known length."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            time.sleep(step_seconds)
            loss = self.layer(batch).pow(2).mean()
            self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Busy()


def train_loader() -> Any:
    """A loader of 12,500 tiny batches."""
    import torch

    return torch.utils.data.DataLoader(torch.randn(100_000, 8), batch_size=8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or with `--json` one object."""
    import contextlib
    import io
    import logging

    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    parser.add_argument("--quick", action="store_true", help="two pairs of short blocks, memory left out")
    options = parser.parse_args(arguments)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(io.StringIO()):
            result = measure(2, 60, memory_pairs=0) if options.quick else measure()
    if options.json:
        print(json.dumps(asdict(result)))
        return
    print("callback overhead (with / without)")
    print(f"  step   {result.step_ms:8.2f} ms")
    print(f"  ratio  {result.ratio:8.4f}   ({result.ratio_low:.4f} to {result.ratio_high:.4f})")
    drawn = result.picture
    span = f"({drawn.low:.4f} to {drawn.high:.4f})"
    print(f"  beside a picture {drawn.ratio:.4f} {span}; drawing takes {result.picture_core:.1%} of a core")
    if result.memory_mb is not None:
        print(f"  memory {result.memory_mb:8.1f} MB")


if __name__ == "__main__":
    main()
