"""Which words reach the worker's pytest: its own parser decides what belongs together."""

from pathlib import Path

import pytest

from pytest_runpod.forwarding import for_worker, positional
from pytest_runpod.selection import words_of

ROOT = Path("/checkout")


def split(pytester, *arguments):
    config = pytester.parseconfigure()
    return words_of(config, arguments)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (["-x", "--tb=short", "-o", "xfail_strict=true"], ["-x", "--tb=short", "-o", "xfail_strict=true"]),
        (["-xvs"], ["-x", "-v", "-s"]),
        (["-n4", "--dist", "loadfile"], ["-n", "4", "--dist", "loadfile"]),
        (["-k", "not slow", "-m", "cuda", "--deselect=a"], ["-k", "not slow", "-m", "cuda", "--deselect=a"]),
        (["-kname", "-mcuda"], ["-k", "name", "-m", "cuda"]),
        (["--lf", "--nf", "--sw", "--cache-clear"], []),
        (["--junitxml=x.xml", "--durations", "5", "-ra", "--color=yes"], []),
        (["--runpod", "--approved-sha", "ab", "--runpod-include=x", "-o", "runpod_gpu=x"], []),
        (["--rootdir=/checkout", "-c", "/checkout/tox.ini", "--basetemp=/x"], []),
        (
            ["--ignore=/checkout/slow", "-p", "no:warnings", "-W", "error"],
            ["--ignore=../slow", "-p", "no:warnings", "-W", "error"],
        ),
        (["--nbmake", "--nbmake-kernel=python3"], ["--nbmake", "--nbmake-kernel=python3"]),
    ],
)
def test_options_go_where_they_belong(pytester, given, sent):
    assert for_worker(split(pytester, *given), ROOT, ROOT / "sub") == tuple(sent)


def test_positional_arguments_keep_their_order_and_become_relative(pytester):
    words = split(pytester, "tests/b.py::test[x y]", "-x", "/checkout/sub/a.py", "/checkout")
    assert positional(words, ROOT, ROOT / "sub") == ("tests/b.py::test[x y]", "../sub/a.py", "..")
