"""Text out of the bytes that a rank prints, cut nowhere inside a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Literal, cast

Stream = Literal["stdout", "stderr"]


class OutputDecoder:
    """Decodes both streams of rank 0 as they come; what is no UTF-8 is replaced."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: make(errors="replace") for stream in ("stdout", "stderr")}

    def feed(self, stream: str, data: bytes, then: Callable[[Stream, str], None]) -> None:
        """Hand on the text that is complete now."""
        text = self._decoders[stream].decode(data)
        if text:
            then(cast(Stream, stream), text)

    def flush(self, then: Callable[[Stream, str], None]) -> None:
        """The segment is over: hand on what is left of a cut character."""
        for stream, decoder in self._decoders.items():
            text = decoder.decode(b"", final=True)
            if text:
                then(cast(Stream, stream), text)
