"""Which files that stayed here a failure speaks of."""

import pytest

from pytest_runpod.core.missing import files_missed

STAYED = ("tests/a.csv", "tests/b.csv", "data/a.csv", "pkg/_fast.cpython-311-x86_64-linux-gnu.so", "VERSION")


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: '/w/p/tests/a.csv'", ("tests/a.csv",)),
        ("OSError: tests/b.csv not found.", ("tests/b.csv",)),
        ("RuntimeError: cannot open a.csv", ("tests/a.csv", "data/a.csv")),
        ("ModuleNotFoundError: No module named 'pkg._fast'", ("pkg/_fast.cpython-311-x86_64-linux-gnu.so",)),
        ("FileNotFoundError: 'VERSION'", ("VERSION",)),
        ("assert read('tests/a.csv') == 3", ()),
        ("FileNotFoundError: 'tests/a.csv.gz'", ()),
        ("FileNotFoundError: 'VERSIONS'", ()),
        ("ModuleNotFoundError: No module named 'fast'", ()),
    ],
)
def test_a_failure_names_what_it_misses_and_nothing_else(text, missed):
    assert files_missed(text, STAYED) == missed


def test_at_most_five_are_named():
    assert len(files_missed("No such file: x.csv", [f"{n}/x.csv" for n in range(9)])) == 5
