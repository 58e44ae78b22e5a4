"""Bodies of requests and answers, the same for all routes. JSON as RFC 8259 has it, ASCII: any text survives."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pytest_runpod.emulator.validation import ApiError

TITLES: Final = {
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    422: "Unprocessable Entity",
}


def answer(value: Any, status: int = 200, media_type: str = "application/json") -> Response:
    """An answer of JSON. Lone surrogates and the like travel as escapes."""
    return Response(json.dumps(value, separators=(",", ":")).encode("ascii"), status, media_type=media_type)


def problem(error: ApiError) -> Response:
    """An error of the management API (RFC 9457)."""
    body: dict[str, Any] = {"title": TITLES.get(error.status, "Error"), "status": error.status, "detail": error.detail}
    if error.errors:
        body["errors"] = error.errors
    return answer(body, error.status, "application/problem+json")


def job_error(error: ApiError) -> Response:
    """An error of the job API: its form is not documented."""
    return answer({"error": error.detail, "status": error.status}, error.status)


async def no_route(_: Request, error: Exception) -> Response:
    """What management says where there is no route, or another method."""
    status = int(getattr(error, "status_code", 404))
    said = problem(ApiError(status, "method not allowed" if status == 405 else "resource not found"))
    said.headers.update(getattr(error, "headers", None) or {})
    return said


async def body_of(request: Request, limit: int) -> Any:
    """Decode a body of at most *limit* bytes. Raises: ApiError: 400."""
    raw = await request.body()
    if len(raw) > limit:
        raise ApiError(400, f"request body is larger than {limit} bytes")
    value, valid = decoded(raw)
    if not valid:
        raise ApiError(400, "request body is not JSON")
    return value


def decoded(raw: bytes) -> tuple[Any, bool]:
    """Decode, and say whether it was JSON in the strict sense: `NaN` is read, so that one sees what was meant, and is not."""
    strict = True

    def constant(name: str) -> float:
        nonlocal strict
        strict = False
        return float(name)

    try:
        value = json.loads(raw, parse_constant=constant)
    except (ValueError, RecursionError):
        return None, False
    return value, strict


def whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A number of the query, brought within its bounds. Raises: ApiError: 400: it is no number."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        return min(max(int(text), least), most)
    except ValueError as slip:
        raise ApiError(400, f"{name} must be a whole number") from slip
