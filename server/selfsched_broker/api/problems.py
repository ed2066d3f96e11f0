"""Problem documents: the one form of every answer that is no success (RFC 9457).

They never repeat what was sent: neither secrets nor markup come back.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from selfsched.errors import InvalidMessage
from selfsched.protocol import Problem, ProblemCode
from selfsched_broker.core.leases import Refusal

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2
STATUS_OF = {
    ProblemCode.INVALID: 422,
    ProblemCode.TOO_LARGE: 413,
    ProblemCode.NOT_AUTHENTICATED: 401,
    ProblemCode.FORBIDDEN: 403,
    ProblemCode.NOT_FOUND: 404,
    ProblemCode.CONFLICT: 409,
    ProblemCode.IDEMPOTENCY_MISMATCH: 422,
    ProblemCode.LEASE_LOST: 410,
    ProblemCode.JOB_ENDED: 409,
    ProblemCode.IMPOSSIBLE: 422,
    ProblemCode.OVERLOADED: 429,
    ProblemCode.UNAVAILABLE: 503,
}
_CODE_OF = {404: ProblemCode.NOT_FOUND, 413: ProblemCode.TOO_LARGE}


class BadRequest(Exception):
    """A request that cannot be read. `status` is its HTTP status."""

    def __init__(self, status: int, detail: str, code: ProblemCode = ProblemCode.INVALID) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code


def problem(status: int, code: str, detail: str = "") -> Response:
    """The answer that is no success."""
    document = Problem(status=status, code=code, title=HTTPStatus(status).phrase, detail=detail[:2000])
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(document.to_json(), status, headers, MEDIA_TYPE)


def refusal_problem(refusal: Refusal) -> Response:
    """The document of the broker's no."""
    return problem(STATUS_OF[refusal.code], refusal.code, refusal.message)


def install(app: FastAPI) -> None:
    """Have every error of an application answered by a problem document."""
    app.add_exception_handler(Refusal, _on_refusal)
    app.add_exception_handler(BadRequest, _on_bad_request)
    app.add_exception_handler(InvalidMessage, _on_invalid)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_mistake)


async def _on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return refusal_problem(error)


async def _on_bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest)
    return problem(error.status, error.code, error.detail)


async def _on_invalid(request: Request, error: Exception) -> Response:
    return problem(422, ProblemCode.INVALID, str(error))


async def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    where = {str(part) for fault in error.errors() for part in fault["loc"][1:]}
    return problem(422, ProblemCode.INVALID, f"not valid: {', '.join(sorted(where))}"[:200])


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = problem(error.status_code, _CODE_OF.get(error.status_code, ProblemCode.INVALID))
    answer.headers.update(error.headers or {})
    return answer


async def _on_mistake(request: Request, error: Exception) -> Response:
    log.error("a mistake of the broker's own in %s: %s", request.scope.get("route"), type(error).__name__)
    return problem(500, "internal_error", "a mistake of the broker's own; its log has the details")
