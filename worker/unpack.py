"""Read an archive that came from elsewhere, distrusting every member. Bytes in, values out; nothing touches the disk.

`pytest_runpod/core/unpack.py` and `worker/unpack.py` are the same file; a test keeps them equal. Standard library only.
"""

from __future__ import annotations

import io
import tarfile
import unicodedata
import zlib
from dataclasses import dataclass


class ArchiveRefused(Exception):
    """The archive is not one that we would have made. Nothing was written."""


@dataclass(frozen=True)
class Bounds:
    """What an archive may hold: members, bytes of one, bytes of all, bytes of a name."""

    members: int
    member: int
    total: int
    path: int


@dataclass(frozen=True)
class Member:
    """One regular file: a relative POSIX path, its content, and whether its owner may execute it."""

    path: str
    data: bytes
    executable: bool


def read_archive(blob: bytes, bounds: Bounds) -> tuple[Member, ...]:
    """Return the members of a gzipped tar, in its order.

    Raises: ArchiveRefused: damaged, more than *bounds* allow, or any member that is not a plain file below the root
    with a name of its own: absolute or climbing paths, drive letters, links, devices, two names that a file system
    may take for one.
    """
    raw = _inflate(blob, bounds.total + bounds.members * 3072 + 10240)
    members: list[Member] = []
    seen: set[str] = set()
    folders: set[str] = set()
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:", errorlevel=2) as tar:
            for info in tar:
                path = _checked_path(info, bounds)
                total += info.size
                if len(members) >= bounds.members or info.size > bounds.member or total > bounds.total:
                    raise ArchiveRefused(f"more than the bounds allow, at {path!r}")
                key = _folded(path)
                parents = {key[:at] for at in range(len(key)) if key[at] == "/"}
                if key in seen or key in folders or parents & seen:
                    raise ArchiveRefused(f"{path!r} and another member could be one file")
                seen.add(key)
                folders |= parents
                source = tar.extractfile(info)
                data = source.read(info.size + 1) if source else b""
                if len(data) != info.size:
                    raise ArchiveRefused(f"{path!r} is shorter than it says")
                members.append(Member(path, data, bool(info.mode & 0o100)))
            end = tar.offset
    except (tarfile.TarError, ValueError, UnicodeError, OverflowError, EOFError, IndexError) as damage:
        raise ArchiveRefused(f"not a readable tar archive: {damage}") from damage
    if any(raw[end:]):
        raise ArchiveRefused("something follows the end of the archive")
    return tuple(members)


def _inflate(blob: bytes, limit: int) -> bytes:
    decoder = zlib.decompressobj(wbits=31)
    try:
        raw = decoder.decompress(blob, limit + 1)
    except zlib.error as damage:
        raise ArchiveRefused(f"not a gzip stream: {damage}") from damage
    if len(raw) > limit:
        raise ArchiveRefused(f"unpacks to more than {limit} bytes")
    if not decoder.eof or decoder.unused_data or decoder.unconsumed_tail:
        raise ArchiveRefused("the gzip stream is cut short, or something follows it")
    return raw


def _checked_path(info: tarfile.TarInfo, bounds: Bounds) -> str:
    path = info.name
    if not info.isreg() or info.sparse is not None:
        raise ArchiveRefused(f"{path!r} is not a regular file")
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        raise ArchiveRefused(f"{path!r} is not UTF-8") from None
    parts = path.split("/")
    if len(encoded) > bounds.path or "\\" in path or "\0" in path or any(ord(letter) < 32 for letter in path):
        raise ArchiveRefused(f"{path!r} is not a portable name")
    if path.startswith("/") or (len(path) > 1 and path[1] == ":") or any(part in ("", ".", "..") for part in parts):
        raise ArchiveRefused(f"{path!r} leaves the folder, or tries to")
    return path


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
