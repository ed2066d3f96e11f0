"""The supervisor's end of the warden: which sessions it must end should we be killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from selfsched.launch.cold import start_warden


class Guard:
    """Keeps a warden told of the sessions that run now; starts another if it is killed."""

    def __init__(self) -> None:
        self._warden: subprocess.Popen[bytes] = start_warden()
        self._sessions: frozenset[int] = frozenset()

    @property
    def pid(self) -> int:
        return self._warden.pid

    def set_sessions(self, sessions: Iterable[int]) -> None:
        """Exactly these sessions are to be ended from now on."""
        wanted = frozenset(sessions)
        lines = [f"+{session}\n" for session in wanted - self._sessions]
        lines += [f"-{session}\n" for session in self._sessions - wanted]
        self._sessions = wanted
        if lines and not self._tell("".join(lines)):
            self._warden.wait()
            self._warden = start_warden()
            self._tell("".join(f"+{session}\n" for session in wanted))

    def _tell(self, lines: str) -> bool:
        assert self._warden.stdin is not None
        try:
            self._warden.stdin.write(lines.encode())
            self._warden.stdin.flush()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Nothing runs any more: the warden ends too."""
        self.set_sessions(())
        assert self._warden.stdin is not None
        self._warden.stdin.close()
        self._warden.wait()
