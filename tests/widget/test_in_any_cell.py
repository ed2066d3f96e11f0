"""`selfsched.show()` and `%load_ext selfsched`, before a real broker and in a real IPython."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.live_broker import LiveBroker, live_broker, register, until_leased

import selfsched
from selfsched.cluster_view import Shown
from selfsched.protocol import DeviceProcess, DeviceState, DeviceView

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with live_broker(tmp_path_factory.mktemp("lab") / "state") as found:
        yield found


@pytest.fixture
def socket(broker: LiveBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    socket = str(broker.running.addresses.socket)
    monkeypatch.setenv("SELFSCHED_LAB_SOCKET", socket)
    return socket


@pytest.fixture
def shell() -> Iterator[Any]:
    testing = pytest.importorskip("IPython.testing.globalipapp")
    found = testing.start_ipython() or testing.get_ipython()
    found.run_line_magic("load_ext", "selfsched")
    yield found
    found.run_line_magic("unload_ext", "selfsched")


def test_show_says_who_holds_what_and_how_my_jobs_stand(broker: LiveBroker, socket: str) -> None:
    job = register(broker.admin, "seen")
    until_leased(broker.admin, job)
    shown = selfsched.show()
    assert "of 2 devices free; " in repr(shown)
    assert "seen | " in repr(shown)
    markup = shown._repr_html_()
    assert "<caption>Who holds how many</caption>" in markup
    assert "<td>seen</td>" in markup
    broker.admin.post(f"/v1/jobs/{job}/end", json={"outcome": "cancelled"})


def test_who_uses_my_devices_memory_is_said_and_is_text(broker: LiveBroker, socket: str) -> None:
    now = selfsched.show()
    stranger = DeviceProcess(pid=7, started=1, session=7, account="eve", used_bytes=2**30)
    stranger = stranger.model_copy(update={"account": "<b>eve</b>"})
    said = {"memory_used_bytes": 3 * 2**30, "processes": (stranger,), "strangers": (7,)}
    mine: DeviceView = now.cluster.devices[0].model_copy(update={"account": now.account, **said})
    shown = Shown(now.account, now.cluster.model_copy(update={"devices": (mine,)}), ())
    assert "3.0 GiB of memory in use; 1.0 GiB of it is taken by who has no lease of it" in repr(shown)
    assert "process 7 of <b>eve</b>, 1.0 GiB, without a lease" in repr(shown)
    assert "cannot be taken over" in repr(shown)
    assert "&lt;b&gt;eve&lt;/b&gt;" in shown._repr_html_()
    assert "<b>" not in shown._repr_html_()


def test_t22_where_no_device_was_reported_there_are_words(broker: LiveBroker, socket: str) -> None:
    now = selfsched.show()
    shown = Shown(now.account, now.cluster.model_copy(update={"devices": ()}), ())
    assert "no machine has reported a device to the broker" in repr(shown)
    assert "`selfsched doctor`" in shown._repr_html_()


def test_u5_a_gpu_is_shown_by_nvidia_smi_s_number_and_a_part_of_one_by_both(
    broker: LiveBroker, socket: str
) -> None:
    now = selfsched.show()
    out = {"kind": "gpu", "model": "A100", "node": "box", "state": DeviceState.DRAINED}
    gpu, part = (
        now.cluster.devices[n].model_copy(update={**out, "id": name, "index": index, "free_when": "put back"})
        for n, (name, index) in enumerate((("GPU-8f6c-1", 3), ("MIG-8f6c-2", 302)))
    )
    shown = repr(Shown("eve", now.cluster.model_copy(update={"devices": (gpu, part)}), ()))
    assert "GPU 3 on box (A100, GPU-8f6c): drained; offered again when: put back" in shown
    assert "GPU 3, part 2 (MIG) on box (A100, MIG-8f6c): drained" in shown


def test_a_magic_prints_what_the_command_prints(socket: str, shell: Any, capfd: Any) -> None:
    shell.run_line_magic("selfsched", "status")
    assert "devices are auctioned in" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("line", "words"),
    [("", "%selfsched is one of"), ("run", "%selfsched is one of"), ("status --nope", "No such option"),
     ("forecast nobody", "no job named")],
)  # fmt: skip
def test_a_wrong_magic_is_one_line(socket: str, shell: Any, capfd: Any, line: str, words: str) -> None:
    shell.run_line_magic("selfsched", line)
    told = capfd.readouterr()
    assert words in told.err
    assert "Traceback" not in told.err


def test_a_cell_of_plain_script_is_a_run(
    socket: str, shell: Any, capfd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFSCHED_RUNS_DIR", str(tmp_path))
    shell.run_cell_magic("selfsched", "run --plan 1@0", "print(6 * 7)\n")
    assert "42" in capfd.readouterr().out.split()
    shell.run_cell_magic("selfsched", "status", "print(1)\n")
    assert "%selfsched is one of" in capfd.readouterr().err
