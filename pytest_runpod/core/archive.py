"""Make the archive: same files, same bytes. Nothing of the machine, the user or the clock is in it."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Iterable

from pytest_runpod.core.manifest import PackedFile


def make_archive(files: Iterable[PackedFile]) -> bytes:
    """Pack *files* in the given order as a gzipped tar: owner 0/0, time 0, two modes, no names of users."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file in files:
            info = tarfile.TarInfo(file.path)
            info.size = len(file.data)
            info.mode = 0o755 if file.executable else 0o644
            tar.addfile(info, io.BytesIO(file.data))
    encoder = zlib.compressobj(level=9, wbits=31)  # gzip framing with an empty header: no name, no time
    return encoder.compress(buffer.getvalue()) + encoder.flush()
