"""JSON as all parsers agree on it.

Python's parser takes NaN, Infinity and 1e999, and the last of two equal keys; others differ.
What is ambiguous is refused before a message is built from it.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, TypeVar

from selfsched.protocol import Message, parse
from selfsched_broker.api.problems import BadRequest

M = TypeVar("M", bound=Message)


class _Ambiguous(ValueError):
    """JSON that another parser may read differently. The words never repeat it."""


def parse_body(kind: type[M], body: bytes) -> M:
    """Build a message from the body of a request.

    Raises:
        BadRequest: no JSON, or ambiguous JSON.
        InvalidMessage: it is no such message.
    """
    try:
        json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except _Ambiguous as error:
        raise BadRequest(400, f"the body is not plain JSON: {error}") from None
    except (ValueError, RecursionError):
        raise BadRequest(400, "the body is not JSON, or nested too deeply") from None
    if b"\\u0000" in body:
        raise BadRequest(400, "the body has a NUL character")
    return parse(kind, body)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Ambiguous("a key stands twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise _Ambiguous("NaN and Infinity are no JSON numbers")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Ambiguous("a number is too large")
    return number
