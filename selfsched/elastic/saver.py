"""Saves a restart checkpoint with all ranks of a fit, and says so."""

from __future__ import annotations

import time
from typing import Any, Literal

from selfsched.core.events import CheckpointSaved, StretchTimed
from selfsched.elastic import carried, loggers
from selfsched.elastic.agreement import Ranks
from selfsched.elastic.checkpoints import Checkpoint, CheckpointStore
from selfsched.elastic.data import FitData
from selfsched.elastic.noise import random_states, restore_random_states
from selfsched.elastic.process import RankProcess
from selfsched.elastic.segment import boottime

Stretch = Literal["validation", "checkpoint_save", "checkpoint_load", "start", "warm_up"]


class Saver:
    """The saving side of one fit. `save` is called by all ranks alike."""

    def __init__(
        self, process: RankProcess, trainer: Any, ranks: Ranks, data: FitData, store: CheckpointStore
    ) -> None:
        self._process = process
        self._trainer = trainer
        self._ranks = ranks
        self._data = data
        self._store = store
        self.attributes_at_start: dict[str, Any] | None = None
        """Fingerprints of the module's plain attributes when training began."""
        self.seconds = 0.0
        """What the last save took."""
        self.saved_at = boottime()
        """CLOCK_BOOTTIME of the last save, or of the fit's begin."""
        self.last_step: int | None = None
        """Global step of the newest checkpoint; None: there is none."""
        self.last_bytes = 0
        """Size of the newest checkpoint; 0: none yet."""

    def save(self, *, finished: bool = False, validation_owed: bool = False) -> Checkpoint | None:
        """Write a restart checkpoint.

        Args:
            finished: The fit has come to its own end.
            validation_owed: A validation is due here, which the next segment must do first.

        Returns:
            The checkpoint on rank 0; None on other ranks, or where there was no room for it.
        """
        trainer = self._trainer
        started = time.perf_counter()
        self.saved_at = boottime()
        if not self._room():
            return None
        noise = random_states()  # saving must not be seen in the noise
        parts = self._ranks.gathered(carried.carry(trainer, self.attributes_at_start or {}))
        checkpoint = None
        if self._wrote_lightnings_part() and trainer.is_global_zero:
            own = {
                "ranks": parts,
                "data": self._data.state(),
                "csv_rows": loggers.csv_rows(trainer.loggers),
                "validation_owed": validation_owed,
            }
            checkpoint = self._completed(own, finished)
        if checkpoint is not None:
            self._announce(checkpoint, time.perf_counter() - started)
        self.seconds = time.perf_counter() - started
        restore_random_states(noise)
        return checkpoint

    def _wrote_lightnings_part(self) -> bool:
        """Whether every rank's writing went well; a disk that fills up ends no training."""
        trainer, store = self._trainer, self._store
        failed = 0
        if trainer.is_global_zero:
            try:
                store.make_room(trainer.global_step)
            except OSError as error:
                self._say_unwritten(error)
                failed = 1
        if self._ranks.maximum([failed])[0]:
            return False
        try:
            trainer.save_checkpoint(str(store.begin(trainer.global_step) / "lightning.ckpt"))
        except OSError as error:
            self._say_unwritten(error)
            failed = 1
            # The others wait where Lightning does after writing.
            trainer.strategy.barrier("Trainer.save_checkpoint")
        return not self._ranks.maximum([failed])[0]

    def _completed(self, own: dict[str, Any], finished: bool) -> Checkpoint | None:
        try:
            return self._store.complete(self._trainer.global_step, own, finished=finished)
        except (OSError, RuntimeError) as error:  # torch's file writer has only RuntimeError
            self._say_unwritten(error)
            return None

    def _say_unwritten(self, error: Exception) -> None:
        if self._trainer.is_global_zero:
            self._store.discard(self._trainer.global_step)
        self._process.notice(
            "no_room",
            f"no checkpoint could be written in {self._store.directory} ({error}): training goes on, "
            "a restart would go back to the last one",
        )

    def send_stretch(self, stretch: Stretch, seconds: float, size_bytes: int | None = None) -> None:
        """Tell the supervisor of a stretch that is no step."""
        step = self._trainer.global_step
        self._process.send(StretchTimed(stretch=stretch, seconds=seconds, step=step, size_bytes=size_bytes))

    def _announce(self, checkpoint: Checkpoint, seconds: float) -> None:
        self.last_bytes, self.last_step = checkpoint.size_bytes, checkpoint.step
        self._process.send(
            CheckpointSaved(
                fit=self._process.fits, step=checkpoint.step, path=checkpoint.path,
                size_bytes=checkpoint.size_bytes, seconds=seconds,
            )
        )  # fmt: skip
        self.send_stretch("checkpoint_save", seconds, checkpoint.size_bytes)

    def _room(self) -> bool:
        """Whether a checkpoint fits on the disk; rank 0 decides for all."""
        short = 0
        if self._trainer.is_global_zero:
            parameters = self._trainer.lightning_module.parameters()
            weights_bytes = sum(p.numel() * p.element_size() for p in parameters)
            # Weights and two moments of Adam, until a first checkpoint says it better.
            needed = int(1.1 * self.last_bytes) if self.last_bytes else 3 * weights_bytes + 1_000_000
            short = int(needed > self._store.free_bytes())
            if short:
                self._process.notice(
                    "no_room",
                    f"no room for a checkpoint of {needed / 1e6:.0f} MB in {self._store.directory}: "
                    "training goes on, a restart would go back to the last one",
                )
        return not self._ranks.maximum([short])[0]
