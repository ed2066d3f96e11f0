"""Real ranks over gloo: two devices train what one does, in any order of segments (T1, T2)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic.ranks import play_ranks, results

pytestmark = pytest.mark.slow

NASTY = {"script": "elastic.nasty:script", "package": "lightning.pytorch"}
OTHER = {**NASTY, "package": "pytorch_lightning"}
STAGED = {"script": "elastic.tiny:staged", "package": "lightning.pytorch"}
LATE = {"script": "elastic.tiny:late_order", "package": "lightning.pytorch"}
SCENARIOS: list[dict[str, Any]] = [
    {"name": "one", "segments": [{}], **NASTY},
    {"name": "two", "segments": [{"world_size": 2}], **NASTY},
    {
        "name": "one-two-one",
        "segments": [
            {"cut_at": [1, 4]}, {"world_size": 2, "cut_at": [1, 9]}, {"cut_at": [2, 3]}, {"world_size": 2},
        ],
        **NASTY,
    },
    {
        "name": "two-one-two",
        "segments": [
            {"world_size": 2, "cut_at": [1, 6]}, {"cut_at": [1, 11]}, {"world_size": 2, "cut_at": [2, 6]}, {},
        ],
        **OTHER,
    },
    {
        "name": "terminated",
        "script": "elastic.tiny:terminated_rank_1",
        "package": "lightning.pytorch",
        "options": {"at": 5},
        "segments": [{"world_size": 2}],
        "codes": {"0": 75},
    },
    {"name": "unhurried", "segments": [{}], **LATE},
    {
        "name": "hurried",
        "options": {"at": 8},
        "segments": [{"world_size": 2}, {}],
        **LATE,
    },
    {
        "name": "sharded",
        "segments": [{"world_size": 2, "validation": "sharded"}],
        **LATE,
    },
    {
        "name": "unknown-loader",
        "script": "elastic.tiny:unknown_loader",
        "package": "lightning.pytorch",
        "segments": [{"world_size": 2, "min_devices": 2}],
    },
    {"name": "staged-one", "segments": [{}], **STAGED},
    {"name": "staged-two", "segments": [{"world_size": 2}], **STAGED},
    {"name": "staged-grown", "segments": [{"cut_at": [1, 3]}, {"world_size": 2}], **STAGED},
    {
        "name": "three",
        "segments": [{"cut_at": [1, 4]}, {"world_size": 3, "max_devices": 3}],
        **NASTY,
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ranks")
    play_ranks(directory, SCENARIOS)
    return directory


@pytest.mark.parametrize("name", ["two", "one-two-one", "two-one-two"])
def test_the_training_is_that_of_one_device(played: Path, name: str) -> None:
    expected = results(played, "one")[0][0]["result"]
    found = results(played, name)[-1][0]["result"]
    for key, value in expected.items():
        if isinstance(value, dict):
            assert found[key].keys() == value.keys()
            for inner in value.keys() - {"val_sum"}:  # what is degraded, see below
                torch.testing.assert_close(
                    torch.as_tensor(found[key][inner]), torch.as_tensor(value[inner]), atol=1e-6, rtol=0
                )
        elif isinstance(value, float | list):
            assert found[key] == pytest.approx(value, abs=1e-6), key
        else:
            assert found[key] == value, key


@pytest.mark.parametrize("name", ["two", "one-two-one", "two-one-two"])
def test_rank_0_sees_the_same_validations_rates_and_means(played: Path, name: str) -> None:
    expected = results(played, "one")[0][0]["seen"]
    segments = results(played, name)
    for what in ("validations", "rates", "epoch_means"):
        found = [entry for ranks in segments for entry in getattr(ranks[0]["seen"], what)]
        wanted = getattr(expected, what)
        assert [entry[:2] for entry in found] == [entry[:2] for entry in wanted]
        for one, other in zip(found, wanted, strict=True):
            assert one[2:] == pytest.approx(other[2:], abs=1e-6)


@pytest.mark.parametrize("name", ["two", "one-two-one", "two-one-two"])
def test_every_sample_is_seen_once_an_epoch(played: Path, name: str) -> None:
    expected = Counter(results(played, "one")[0][0]["seen"].samples)
    found = Counter(
        sample for ranks in results(played, name) for rank in ranks for sample in rank["seen"].samples
    )
    assert set(expected.values()) == {1}
    assert found.keys() == expected.keys()
    # A rank left without a sample in the epoch's last batch repeats one, with weight 0.
    repeated = Counter(epoch for (_, epoch, _), count in found.items() if count > 1)
    assert max(repeated.values(), default=0) <= 1
    assert max(found.values()) <= 2


def test_every_rank_ends_with_the_same_weights(played: Path) -> None:
    first, second = (rank["result"]["second_weights"] for rank in results(played, "two")[0])
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_nothing_warns_of_an_unsafe_resume_or_of_unsynchronised_means(played: Path) -> None:
    texts = [
        text
        for name in ("one-two-one", "two-one-two")
        for ranks in results(played, name)
        for rank in ranks
        for text in rank["warnings"]
    ]
    for word in ("not resumable", "sync_dist", "dirpath has changed", "is not empty"):
        assert not [text for text in texts if word in text], word


def test_a_signal_to_one_rank_makes_all_leave_at_one_step(played: Path) -> None:
    ranks = results(played, "terminated")[0]
    steps = {rank["seen"].rates[-1][1] for rank in ranks}
    assert [rank["code"] for rank in ranks] == [75, 75]
    assert len(steps) == 1
    assert 5 <= steps.pop() < 20_000
    assert list((played / "terminated" / "run" / "fits" / "1").glob("step-*"))


def test_a_world_that_does_not_divide_the_batch_is_only_slower(played: Path) -> None:
    ranks = results(played, "three")[1]
    expected, found = results(played, "one")[0][0]["result"], ranks[0]["result"]
    for key in ("weights", "second_weights", "ema"):
        for name, value in expected[key].items():
            torch.testing.assert_close(found[key][name], value, atol=1e-6, rtol=0)
    assert found["test_loss"] == pytest.approx(expected["test_loss"], abs=1e-6)
    assert [text for text in ranks[0]["warnings"] if "selfsched [uneven_shares]: 3 devices" in text]


def test_a_validation_for_which_there_is_no_time_is_done_in_the_next_segment(played: Path) -> None:
    (expected,) = results(played, "unhurried")[0]
    first, second = results(played, "hurried")
    assert [rank["code"] for rank in first] == [75, 75]
    assert [step for _, step, _ in first[0]["seen"].validations] == [4]
    found = first[0]["seen"].validations + second[0]["seen"].validations
    assert [step for _, step, _ in found] == [4, 8, 12, 16]
    for one, other in zip(found, expected["seen"].validations, strict=True):
        assert one[2] == pytest.approx(other[2], abs=1e-6)


def test_validation_is_whole_on_every_rank_unless_sharding_was_asked_for(played: Path) -> None:
    whole = [rank["seen"].validations[0][2] for rank in results(played, "hurried")[0]]
    parts = [rank["seen"].validations[0][2] for rank in results(played, "sharded")[0]]
    assert whole[0] == whole[1]
    assert parts[0] != parts[1]


def test_a_sum_over_ranks_in_validation_is_warned_of(played: Path) -> None:
    (first, _) = results(played, "two")[0]
    (alone,) = results(played, "one")[0]
    sums = [played_by["result"]["monitored"]["val_sum"] for played_by in (alone, first)]
    assert sums[1] == 2 * sums[0]
    assert [text for text in first["warnings"] if "selfsched [validation_sums]: 'val_sum'" in text]
    assert not [text for text in alone["warnings"] if "selfsched" in text]
    assert first["result"]["monitored"]["val_seen"] == 6


def test_a_loader_that_is_not_ours_is_split_as_lightning_would(played: Path) -> None:
    ranks = results(played, "unknown-loader")[0]
    seen = Counter(sample for rank in ranks for sample in rank["seen"].samples)
    assert (len(seen), set(seen.values())) == (32, {1})
    assert [rank["result"]["step"] for rank in ranks] == [8, 8]


@pytest.mark.parametrize("name", ["staged-two", "staged-grown"])
def test_parameters_that_are_thawed_or_rarely_used_are_trained_as_on_one_device(
    played: Path, name: str
) -> None:
    expected = results(played, "staged-one")[0][0]["result"]
    ranks = results(played, name)[-1]
    for rank in ranks:
        assert rank["result"]["step"] == expected["step"]
        for key, value in expected["weights"].items():
            torch.testing.assert_close(rank["result"]["weights"][key], value, atol=1e-6, rtol=0)
        assert not [text for text in rank["warnings"] if "find_unused_parameters" in text]
