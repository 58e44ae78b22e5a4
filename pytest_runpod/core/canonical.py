"""One way to write JSON that is hashed, and one way to hash it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Write *value* so that equal values give equal bytes: sorted keys, no spaces, ASCII, no NaN.

    >>> canonical_json({"b": 1, "a": "é"})
    b'{"a":"\\\\u00e9","b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def worker_digest(files: Mapping[str, str]) -> str:
    """Digest of the worker's files, by name and text. The loader on the worker compares it before it runs anything."""
    return sha256(canonical_json(dict(files)))
