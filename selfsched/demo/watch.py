"""Watches the broker while the demo runs: what each account has, why, and until when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from selfsched.client import BrokerClient
from selfsched.commands.words import forecast_words
from selfsched.demo.result import Decision
from selfsched.errors import BrokerError
from selfsched.protocol import DeviceState, JobState, JobView

_SAY_EVERY_SECONDS = 10.0


@dataclass
class Watched:
    """What was seen of one account's job. Instants are Unix seconds."""

    view: JobView
    registered_at: float
    ended_at: float | None = None
    rho: list[tuple[float, float]] = field(default_factory=list)


class Watch:
    """Asks the broker, as each of the accounts, and says what changed.

    Args:
        clients: of the broker, by account.
        say: prints a line for people.
    """

    def __init__(self, clients: Mapping[str, BrokerClient], say: Callable[[str], None]) -> None:
        self._clients = clients
        self._say = say
        self._began_at = time.time()
        self._shown: dict[str, tuple[object, ...]] = {}
        self._said_at: dict[str, float] = {}
        self.seen: dict[str, Watched] = {}

    def look(self) -> None:
        """One look at every account's job; a broker that does not answer is asked again later."""
        for account, client in self._clients.items():
            try:
                jobs = client.jobs()
            except BrokerError:
                continue
            if jobs:
                self._note(account, max(jobs, key=lambda job: job.age_seconds), time.time())

    def _note(self, account: str, view: JobView, now: float) -> None:
        seen = self.seen.setdefault(account, Watched(view, registered_at=now - view.age_seconds))
        seen.view = view
        if view.state is JobState.ENDED:
            seen.ended_at = seen.ended_at or now
        if view.rho is not None and (not seen.rho or seen.rho[-1][1] != view.rho):
            seen.rho.append((now, view.rho))
        self._tell(account, view, now)

    def _tell(self, account: str, view: JobView, now: float) -> None:
        """A line when something changed, or nothing was said for a while."""
        ended = view.state is JobState.ENDED
        shown = (view.state, tuple(device.id for device in view.devices), view.outcome)
        changed = shown != self._shown.get(account)
        if not changed and (ended or now - self._said_at[account] < _SAY_EVERY_SECONDS):
            return
        self._shown[account], self._said_at[account] = shown, now
        count = len(view.devices)
        holds = "1 device " if count == 1 else f"{count} devices"
        words = f"{now - self._began_at:5.0f} s  {account:<9} {view.outcome or view.state:<9} {holds}"
        if not ended:
            words += f" {view.fraction_done:4.0%} done, finished in {forecast_words(view.forecast)}"
        if changed and view.reasons:
            words += f"\n{'':9}{'':10} because {view.reasons[-1]}"
        self._say(words)

    def decisions(self, first_at: float) -> tuple[Decision, ...]:
        """Why each allocation was made, from the broker's record of its auctions.

        Each account is asked about itself: reasons of others are not shown to it.
        """
        found = [
            decision
            for account, client in self._clients.items()
            for decision in _decisions_of(account, client, first_at)
        ]
        return tuple(sorted(found, key=lambda decision: (decision.auction, decision.account)))

    def held_devices(self) -> int:
        """Devices that are not free according to the broker."""
        cluster = next(iter(self._clients.values())).cluster()
        return sum(device.state is not DeviceState.FREE for device in cluster.devices)


def _decisions_of(account: str, client: BrokerClient, first_at: float) -> Iterator[Decision]:
    """The awards of one account, from the first auction to the last."""
    for number in count(1):
        try:
            auction = client.auction(number)
        except BrokerError:
            return
        for award in auction.awards:
            if award.account == account:
                yield Decision(
                    at_s=round(max(time.time() - auction.ago_seconds - first_at, 0.0), 2),
                    auction=auction.number,
                    trigger=auction.trigger,
                    account=account,
                    devices=award.devices,
                    reason=award.reason,
                )
