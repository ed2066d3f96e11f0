"""One log over all segments: versions, run ids and the CSV file go on where they were."""

from __future__ import annotations

import csv
import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfsched.elastic import lightning_internals as internals


def versions(loggers: Sequence[Any]) -> list[int | str | None]:
    """The version of each file logger, the run of each MLflow logger; None for the others."""
    return [internals.logger_version(logger) for logger in loggers]


def pin(loggers: Sequence[Any], pinned: Sequence[int | str | None]) -> None:
    """Make each of these loggers go on with the version or run it had in the first segment."""
    for logger, version in zip(loggers, pinned, strict=False):
        if version is not None:
            internals.pin_version(logger, version)


def pin_wandb(loggers: Sequence[Any], run: str) -> None:
    """Give W&B loggers that were given no id one that is the same in every segment."""
    for number, logger in enumerate(loggers):
        internals.pin_wandb(logger, hashlib.sha256(f"{run}/{number}".encode()).hexdigest()[:16])


def csv_rows(loggers: Sequence[Any]) -> list[int]:
    """Rows written so far by each CSVLogger; kept in a checkpoint."""
    return [len(_read(logger)[1]) for logger in loggers if internals.is_csv_logger(logger)]


def continue_csv(loggers: Sequence[Any], rows: Sequence[int]) -> None:
    """Rank 0: let each CSVLogger append to its file of earlier segments.

    Lightning deletes an existing metrics.csv when it opens the directory. So the lines are
    read before and written back after.

    Args:
        loggers: All loggers of the trainer.
        rows: For each CSVLogger, how many rows to keep: what was written after the
            checkpoint belongs to steps that will be made again.
    """
    writers = [logger for logger in loggers if internals.is_csv_logger(logger)]
    for logger, keep in zip(writers, rows, strict=False):
        header, earlier = _read(logger)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Experiment logs directory")
            writer = internals.csv_writer(logger)
        if writer is None or not earlier[:keep]:
            continue
        with _path(logger).open("w", newline="") as file:
            lines = csv.DictWriter(file, fieldnames=header)
            lines.writeheader()
            lines.writerows(earlier[:keep])
        writer.metrics_keys = list(header)


def _path(logger: Any) -> Path:
    return Path(logger.log_dir) / "metrics.csv"


def _read(logger: Any) -> tuple[Sequence[str], list[dict[str, str]]]:
    path = _path(logger)
    if not path.is_file():
        return (), []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        return reader.fieldnames or (), rows
