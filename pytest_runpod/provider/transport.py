"""One HTTP request, with explicit timeouts. What failure means is decided here, once, by what can have happened there."""

from __future__ import annotations

import concurrent.futures
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import requests
import requests.auth

from pytest_runpod.core.limits import REQUEST_TIMEOUT_S
from pytest_runpod.core.secret import Secret
from pytest_runpod.errors import FateUnknown, ProviderError, ProviderRefused, ProviderUnreachable

CONNECT_S: Final = 10.0
RETRIES: Final = 3  # of GET and DELETE only; a POST is never sent twice
BACKOFF_S: Final = 1.0
RETRIED: Final = frozenset({429, 500, 502, 503, 504})
MAX_RETRY_AFTER_S: Final = 30.0
CLOSING_S: Final = 1.0  # more than its own timeouts an exchange gets before it is left behind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: status and decoded JSON body (None when it is empty)."""

    status: int
    body: Any


class _Bearer(requests.auth.AuthBase):
    """Puts the key into each request's header. It shows itself in no traceback."""

    def __init__(self, key: str) -> None:
        self._key = Secret(key)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = Secret(f"Bearer {self._key}")
        return request


class Transport:
    """Speak HTTP to one base URL with one key. The key is in the session's header and in no message."""

    def __init__(
        self, key: str, *, read_s: float = REQUEST_TIMEOUT_S, wait: Callable[[float], object] = time.sleep
    ) -> None:
        self._session = requests.Session()
        self._session.auth = _Bearer(key)  # as `auth`, so that no ~/.netrc replaces it
        self._session.headers["User-Agent"] = "pytest-runpod"
        self._wait = wait
        self._read_s = read_s

    def close(self) -> None:
        self._session.close()

    def get(self, url: str, params: Mapping[str, str] | None = None) -> Answer:
        return self._repeatable("GET", url, params=params)

    def first_events(self, url: str, params: Mapping[str, str], *, pause_s: float = 2.0) -> list[Mapping[str, Any]]:
        """Read server-sent events until none has come for *pause_s* seconds. Raises: ProviderError: no such stream."""
        found: list[Mapping[str, Any]] = []

        def read() -> None:
            with self._session.get(url, params=params, timeout=(CONNECT_S, pause_s), stream=True) as response:
                if not response.ok:
                    raise refused("GET", url, Answer(response.status_code, None), "The log cannot be read.")
                for line in response.iter_lines():
                    if line.startswith(b"data:") and isinstance(event := json.loads(line[5:]), dict):
                        found.append(event)

        try:
            _within(self._read_s, read)
        except (requests.exceptions.RequestException, ValueError, concurrent.futures.TimeoutError):
            return list(found)  # the pause: what came until then is the log
        return found

    def delete(self, url: str) -> Answer:
        return self._repeatable("DELETE", url)

    def patch(self, url: str, body: Mapping[str, Any]) -> Answer:
        return self._once("PATCH", url, json=body)

    def post(self, url: str, body: Mapping[str, Any] | None = None) -> Answer:
        """Send once.

        Raises: ProviderUnreachable: no connection, it never left. FateUnknown: it left, and no usable answer came.
        """
        return self._once("POST", url, json=body)

    def _repeatable(self, method: str, url: str, **arguments: Any) -> Answer:
        for attempt in range(RETRIES + 1):
            try:
                answer, retry_after = self._exchange(method, url, **arguments)
            except ProviderError:
                if attempt == RETRIES:
                    raise
                retry_after = None
            else:
                if answer.status not in RETRIED or attempt == RETRIES:
                    return answer
            self._wait(retry_after if retry_after is not None else BACKOFF_S * 2**attempt)
        raise AssertionError("unreachable")

    def _once(self, method: str, url: str, **arguments: Any) -> Answer:
        return self._exchange(method, url, **arguments)[0]

    def _exchange(self, method: str, url: str, **arguments: Any) -> tuple[Answer, float | None]:
        connect_s = min(CONNECT_S, self._read_s)

        def exchange() -> requests.Response:
            timeout = (connect_s, self._read_s)
            return self._session.request(method, url, timeout=timeout, allow_redirects=False, **arguments)

        try:
            response = _within(connect_s + self._read_s + CLOSING_S, exchange)
        except (
            requests.exceptions.ConnectTimeout,
            requests.exceptions.InvalidURL,
            requests.exceptions.MissingSchema,
        ) as no:
            raise _unreachable(method, url) from no
        except requests.exceptions.ConnectionError as lost:
            if _never_left(lost):
                raise _unreachable(method, url) from lost
            raise _lost(method, url) from lost
        except (requests.exceptions.RequestException, concurrent.futures.TimeoutError) as lost:
            raise _lost(method, url) from lost
        return Answer(response.status_code, _body(method, url, response)), _retry_after(response)


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Do *work* in a thread that is left behind when it takes longer: a read timeout starts again with every byte.

    Raises: concurrent.futures.TimeoutError: it took longer. Whatever *work* raises.
    """
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits for it
            done.set_exception(error)

    threading.Thread(target=run, name="exchange", daemon=True).start()
    return done.result(seconds)


def _body(method: str, url: str, response: requests.Response) -> Any:
    if not response.content:
        return None
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        if response.ok:
            raise _lost(method, url) from None
        return None


def _retry_after(response: requests.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return min(float(value), MAX_RETRY_AFTER_S) if value.isdigit() else None


def _never_left(error: requests.exceptions.ConnectionError) -> bool:
    text = repr(error)
    return "NewConnectionError" in text or "NameResolutionError" in text


def _unreachable(method: str, url: str) -> ProviderUnreachable:
    return ProviderUnreachable(
        f"No connection to {urlsplit(url).netloc}. The request never left.",
        looked_at=f"{method} {_shown(url)}",
        todo="check the network, the proxy, and the PYTEST_RUNPOD_*_URL variables",
    )


def _lost(method: str, url: str) -> FateUnknown:
    return FateUnknown(
        f"The answer of {urlsplit(url).netloc} was lost. The request may have had its effect; it is not sent again.",
        looked_at=f"{method} {_shown(url)}",
    )


def _shown(url: str) -> str:
    return url.split("?", 1)[0]


def refused(method: str, url: str, answer: Answer, happened: str, todo: str = "") -> ProviderRefused:
    """Make the error of an answer that says no: its status, and the provider's own words, shortened."""
    detail = ""
    if isinstance(answer.body, dict):
        words = answer.body.get("detail") or answer.body.get("error") or answer.body.get("message") or ""
        errors = answer.body.get("errors")
        detail = ": ".join(str(part) for part in (words, errors) if part)[:400]
    looked_at = f"{method} {_shown(url)} answered {answer.status}" + (f" ({detail})" if detail else "")
    return ProviderRefused(
        happened, status=answer.status, looked_at=looked_at, todo=todo or _advice(answer.status, url)
    )


def _advice(status: int, url: str) -> str:
    host = urlsplit(url).netloc
    if status == 401:
        return f"check RUNPOD_API_KEY: {host} does not accept it (the provider's two hosts check keys, each on its own)"
    if status == 403:
        return f"give the key write access to the API of {host}"
    if status == 429:
        return "too many requests for this account: wait a minute, then start again"
    if status >= 500:
        return "trouble on the provider's side: try again later; `pytest-runpod doctor` tells when both hosts answer"
    return ""
