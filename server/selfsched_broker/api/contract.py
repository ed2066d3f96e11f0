"""What OpenAPI says of a route whose body is read as a message of the protocol."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from selfsched import protocol
from selfsched.protocol import Message, Problem

_REF = "#/components/schemas/{model}"


def describes(
    *,
    takes: type[Message] | None = None,
    gives: type[Message] | None = None,
    many: bool = False,
    status: int = 200,
) -> dict[str, Any]:
    """The `openapi_extra` and `status_code` of a route."""
    extra: dict[str, Any] = {"responses": {"4XX": _content("A problem document", Problem)}}
    if gives is not None:
        extra["responses"][str(status)] = _content("Fine", gives, many=many)
    if takes is not None:
        extra["requestBody"] = {"required": True, **_content("", takes)}
        extra["requestBody"].pop("description")
    return {"openapi_extra": extra, "status_code": status}


def _content(words: str, kind: type[Message], *, many: bool = False) -> dict[str, Any]:
    reference: dict[str, Any] = {"$ref": _REF.format(model=kind.__name__)}
    schema = {"type": "array", "items": reference} if many else reference
    media = "application/problem+json" if kind is Problem else "application/json"
    return {"description": words, "content": {media: {"schema": schema}}}


def publish(app: FastAPI) -> None:
    """Have the OpenAPI document carry every message of the protocol."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, routes=app.routes)
            kinds = [kind for kind in Message.__subclasses__() if kind.__module__ == protocol.__name__]
            schemas = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_REF)[1]
            found.setdefault("components", {})["schemas"] = schemas["$defs"]
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way
