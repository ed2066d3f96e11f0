"""A real Jupyter server on a real port, with the extension as it is installed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

JUPYTER_TOKEN = "of-jupyter-itself"
_START_SECONDS = 60.0


@dataclass(frozen=True)
class JupyterProcess:
    """A server that answers."""

    url: str
    """With its base URL and a final slash."""
    home: Path
    log_path: Path

    @property
    def api(self) -> str:
        return f"{self.url}selfsched/api/"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def client(self) -> httpx.Client:
        """A program that is let in by Jupyter's token."""
        headers = {"Authorization": f"token {JUPYTER_TOKEN}"}
        return httpx.Client(base_url=self.api, headers=headers, trust_env=False, timeout=30)

    def async_client(self) -> httpx.AsyncClient:
        """As `client`, for many requests at once."""
        headers = {"Authorization": f"token {JUPYTER_TOKEN}"}
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(
            base_url=self.api, headers=headers, trust_env=False, timeout=30, limits=limits
        )

    @contextmanager
    def browser(self) -> Iterator[httpx.Client]:
        """A browser that has logged in: it has cookies, and no token in its headers."""
        with httpx.Client(base_url=self.api, trust_env=False, timeout=30) as found:
            found.get(f"{self.url}?token={JUPYTER_TOKEN}")
            found.get(f"{self.url}lab")
            yield found


@contextmanager
def jupyter_process(
    home: Path,
    *,
    base_url: str = "/",
    environment: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> Iterator[JupyterProcess]:
    """Run one; `home` is all that it finds of its user."""
    port = _free_port()
    log_path = home / "jupyter.log"
    command = [
        sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--debug", f"--port={port}",
        "--ServerApp.port_retries=0", f"--ServerApp.base_url={base_url}", f"--ServerApp.root_dir={home}",
        f"--IdentityProvider.token={JUPYTER_TOKEN}", *options,
    ]  # fmt: skip
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            command, env=_environment(home, environment or {}), stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, cwd=home,
        )  # fmt: skip
    found = JupyterProcess(f"http://127.0.0.1:{port}{base_url}", home, log_path)
    try:
        _until_it_answers(found, process)
        yield found
    finally:
        process.terminate()
        process.wait(20)


def _environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    ours = ("SELFSCHED_", "_SELFSCHED_", "XDG_", "JUPYTER")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home / "runtime"),
        "SELFSCHED_LAB_SOCKET": str(home / "no-lab.sock"),
        **more,
    }


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _until_it_answers(server: JupyterProcess, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up_at and process.poll() is None:
        try:
            if httpx.get(f"{server.url}api", trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"Jupyter's server does not come up:\n{server.log[-3000:]}")
