"""What a rank raised is told by its cause: a batch that cannot be fetched is a dead worker's."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from selfsched.elastic.raised import is_lost_worker, to_tell


class Asked(Dataset[torch.Tensor]):
    """Numbers; the second one that is asked for raises, or lets the worker go deaf."""

    def __init__(self, flag: Path, error: OSError | None = None) -> None:
        self.flag = flag
        self.error = error

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 1 and self.error is not None:
            raise self.error
        if index == 1:
            while not resource_sharer._resource_sharer._cache:  # type: ignore[attr-defined]
                time.sleep(0.001)
            resource_sharer.stop(timeout=10)  # as its death would: the first one was not fetched yet
            self.flag.touch()
        return torch.tensor(index)


def raised_by(batches: Iterator[Any]) -> FileNotFoundError:
    """What the next batches raise."""
    with pytest.raises(FileNotFoundError) as found:
        list(batches)
    return found.value


def test_a_batch_that_cannot_be_fetched_is_of_a_dead_worker(tmp_path: Path) -> None:
    flag = tmp_path / "deaf"
    batches = iter(DataLoader(Asked(flag), num_workers=1))
    while not flag.exists():
        time.sleep(0.001)
    error = raised_by(batches)
    assert is_lost_worker(error)
    error.errno = errno.EMFILE
    assert not is_lost_worker(error), "too many open files: the same would come again"


@pytest.mark.parametrize("workers", [0, 1])
def test_what_the_dataset_raises_is_its_own(tmp_path: Path, workers: int) -> None:
    error = FileNotFoundError(errno.ENOENT, "the user's own file")
    told = to_tell(raised_by(iter(DataLoader(Asked(tmp_path / "deaf", error), num_workers=workers))), rank=0)
    assert told is not None
    assert "the user's own file" in told.message
    assert not told.lost_worker
