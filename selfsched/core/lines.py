r"""Messages and records as JSON, also where a text in them is no Unicode.

A name of a file may hold bytes that are no UTF-8, and so may what an exception says of it. Python keeps
such a byte as half a character (`\udcff`), which no UTF-8 can hold: pydantic refuses to write it. What is
told to people has a replacement character there; what is read back to find the file keeps it as it is.
"""

from __future__ import annotations

import json

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError


def to_line(message: BaseModel) -> bytes:
    """A message as one line of JSON, newline included; half characters are replaced."""
    try:
        return message.model_dump_json().encode() + b"\n"
    except PydanticSerializationError:
        text = json.dumps(message.model_dump(), default=str, ensure_ascii=False)
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return whole.encode() + b"\n"


def to_exact_json(record: BaseModel) -> str:
    """A record as JSON in which half characters are kept, as escapes; for `json.loads` to read."""
    return json.dumps(record.model_dump(), default=str)
