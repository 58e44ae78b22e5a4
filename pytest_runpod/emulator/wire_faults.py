"""Faults of the wire, around an application: what the client sees is not what happened. Also keeps the list of requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any, Protocol

from pytest_runpod.emulator.faults import Rule
from pytest_runpod.emulator.model import Account

Entry = dict[str, Any]  # one request in the list of those seen


class Watched(Protocol):
    """What this needs of the service: its account, with the faults, and the list of requests seen."""

    account: Account
    seen: list[dict[str, Any]]


class WireFaults:
    """ASGI middleware. Rules count the requests that fit them, each on its own."""

    def __init__(self, app: Any, service: Watched) -> None:
        self.app, self.service = app, service
        self.counts: Counter[Rule] = Counter()
        self.rules: tuple[Rule, ...] = ()
        self.released = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        entry = {
            "method": scope["method"],
            "path": scope["path"],
            "status": None,
            "at": time.time(),
            "fault": None,
            "held": False,
        }
        if not scope["path"].startswith("/_emulator/"):
            self.service.seen.append(entry)

        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start":
                entry["status"] = message["status"]
            await send(message)

        rule = self._rule(scope["method"], scope["path"])
        if rule is None:
            await self.app(scope, receive, noting)
        else:
            entry["fault"] = rule.kind
            await self._with(rule, entry, scope, receive, noting)

    def release(self) -> None:
        """Let every request that is held go on; those that come later are held again."""
        self.released.set()
        self.released = asyncio.Event()

    def _rule(self, method: str, path: str) -> Rule | None:
        found = None
        if self.rules is not self.service.account.faults.rules:  # replaced while it runs: they count from one again
            self.rules = self.service.account.faults.rules
            self.counts.clear()
        for rule in self.rules:
            if rule.fits(method, path):
                self.counts[rule] += 1
                if found is None and rule.nth in (0, self.counts[rule]):
                    found = rule
        return found

    async def _with(self, rule: Rule, entry: Entry, scope: Any, receive: Any, send: Any) -> None:
        """Before the effect, instead of it, or after it."""
        if rule.kind in ("refuse", "status"):
            await _drained(receive)
            status = 503 if rule.kind == "refuse" else rule.status
            await _answer(
                send, status, json.dumps({"title": "fault", "status": status, "detail": "injected"}).encode(), rule
            )
        elif rule.kind == "disconnect":
            await _drained(receive)
            await _cut(send, 200, b"", 0)
        elif rule.kind in ("delay", "hold"):
            message = await _whole_body(receive)  # read now: the client may be gone when the pause is over
            await self._pause(rule, entry)
            await self.app(scope, _once(message, receive), send)
        else:
            await self._after_the_effect(rule, entry, scope, receive, send)

    async def _after_the_effect(self, rule: Rule, entry: Entry, scope: Any, receive: Any, send: Any) -> None:
        swallowed: list[Any] = []

        async def swallow(message: Any) -> None:
            swallowed.append(message)

        await self.app(scope, receive, swallow)
        body = b"".join(message.get("body", b"") for message in swallowed if message["type"] == "http.response.body")
        status = next(message["status"] for message in swallowed if message["type"] == "http.response.start")
        status = status if status != 204 else 200  # an answer that has a body
        if rule.kind in ("delay_answer", "hold_answer"):
            await self._pause(rule, entry)
            for message in swallowed:
                await send(message)
        elif rule.kind == "trickle":
            await _trickle(send, status, body, rule.seconds)
        elif rule.kind == "fail_after":
            await _answer(send, 500, b'{"title": "fault", "status": 500, "detail": "injected"}', rule)
        elif rule.kind == "garbage":
            await _answer(send, status, b"<html>not what you expect", rule)
        else:  # the connection ends before the answer does
            await _cut(send, status, body[: len(body) // 2] if rule.kind == "truncate" else b"", len(body))

    async def _pause(self, rule: Rule, entry: Entry) -> None:
        if rule.kind.startswith("hold"):
            released = self.released
            entry["held"] = True
            await released.wait()
        else:
            await asyncio.sleep(rule.seconds)


async def _cut(send: Any, status: int, begun: bytes, size: int) -> None:
    """Promise an answer of more than *size* bytes, send what is *begun*, and let the server close the connection."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(size + 100).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": begun, "more_body": True})


async def _trickle(send: Any, status: int, body: bytes, seconds: float) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for position in range(len(body)):
        await asyncio.sleep(seconds)
        await send({"type": "http.response.body", "body": body[position : position + 1], "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _answer(send: Any, status: int, body: bytes, rule: Rule) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if rule.retry_after is not None:
        headers.append((b"retry-after", str(rule.retry_after).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _drained(receive: Any) -> None:
    while (await receive()).get("more_body"):
        continue


async def _whole_body(receive: Any) -> Any:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return {"type": "http.request", "body": body, "more_body": False}


def _once(message: Any, receive: Any) -> Any:
    """What the application receives: the body that was read already, then whatever comes."""
    waiting = [message]

    async def inner() -> Any:
        return waiting.pop() if waiting else await receive()

    return inner
