"""Archives from elsewhere: what we would not have made is refused, whatever it is."""

import gzip
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_runpod.core.archive import make_archive
from pytest_runpod.core.manifest import PackedFile
from pytest_runpod.core.unpack import ArchiveRefused, Bounds, Member, read_archive

BOUNDS = Bounds(members=10, member=1000, total=3000, path=60)


def packed(*infos: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for info, data in infos:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue())


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    value = tarfile.TarInfo(name)
    value.type, value.linkname = kind, link
    return value


@given(
    st.lists(
        st.builds(
            PackedFile,
            st.from_regex(r"[a-z]{1,8}(/[a-zé]{1,8}){0,3}\.py", fullmatch=True),
            st.binary(max_size=200),
            st.booleans(),
        ),
        unique_by=lambda file: file.path,
        max_size=8,
    )
)
def test_what_we_pack_is_what_comes_out(files):
    blob = make_archive(files)
    assert blob == make_archive(files)
    assert read_archive(blob, BOUNDS) == tuple(Member(file.path, file.data, file.executable) for file in files)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../up",
        "a/../../up",
        "a/./b",
        "a//b",
        "C:/x",
        "C:\\x",
        "a\\b",
        "line\nbreak",
        "x" * 61,
        ".",
        "",
    ],
)
def test_a_name_that_leaves_the_folder_is_refused(name):
    with pytest.raises(ArchiveRefused):
        read_archive(packed((info(name), b"x")), BOUNDS)


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.DIRTYPE,
        tarfile.FIFOTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
    ],
)
def test_anything_but_a_plain_file_is_refused(kind):
    with pytest.raises(ArchiveRefused, match="not a regular file"):
        read_archive(packed((info("x", kind, "target"), b"")), BOUNDS)


@pytest.mark.parametrize(
    ("one", "two"), [("a", "a"), ("A", "a"), ("é", "e\u0301"), ("a", "a/b"), ("a/b", "a"), ("straße", "STRASSE")]
)
def test_two_names_that_may_be_one_file_are_refused(one, two):
    with pytest.raises(ArchiveRefused, match="could be one file"):
        read_archive(packed((info(one), b""), (info(two), b"")), BOUNDS)


def test_bounds_are_kept():
    for files in ([("a", b"x" * 1001)], [(f"f{n}", b"") for n in range(11)], [(f"f{n}", b"x" * 900) for n in range(4)]):
        with pytest.raises(ArchiveRefused):
            read_archive(packed(*((info(name), data) for name, data in files)), BOUNDS)


def test_a_bomb_is_refused_before_it_is_unpacked():
    with pytest.raises(ArchiveRefused, match="unpacks to more"):
        read_archive(gzip.compress(b"\0" * 50_000_000), BOUNDS)


def test_truncated_trailing_and_damaged_archives_are_refused():
    good = make_archive([PackedFile("a.py", b"x = 1\n" * 50)])
    for blob in (
        good[:-1],
        good[: len(good) // 2],
        good + b"more",
        b"",
        b"not gzip",
        good[:20] + bytes([good[20] ^ 255]) + good[21:],
    ):
        with pytest.raises(ArchiveRefused):
            read_archive(blob, BOUNDS)


def test_data_after_the_end_of_the_archive_is_refused():
    raw = gzip.decompress(make_archive([PackedFile("a.py", b"x")]))
    with pytest.raises(ArchiveRefused, match="follows the end"):
        read_archive(gzip.compress(raw + b"x" * 512), BOUNDS)


@given(st.binary(max_size=3000))
def test_noise_is_refused_and_never_crashes(noise):
    with pytest.raises(ArchiveRefused):
        read_archive(gzip.compress(noise.ljust(512, b"!")), BOUNDS)
