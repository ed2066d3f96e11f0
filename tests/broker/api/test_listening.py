"""The broker's TCP socket as asyncio takes it over."""

from __future__ import annotations

import asyncio
import socket

from selfsched_broker import settings
from selfsched_broker.listening import bind_tcp


def test_an_answer_is_not_held_back_until_the_one_before_is_acknowledged() -> None:
    found = settings.load(environment={}, host="127.0.0.1", port=0)

    async def nodelay_of_a_connection() -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            seen.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with bind_tcp(found) as bound:
            server = await asyncio.start_server(connected, sock=bound)
            async with server:
                _, writer = await asyncio.open_connection(*bound.getsockname()[:2])
                value = await seen
                writer.close()
                await writer.wait_closed()
        return value

    assert asyncio.run(nodelay_of_a_connection()) != 0
