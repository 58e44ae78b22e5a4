"""Which files travel: by kind, by name, never a credential."""

import pytest

from pytest_runpod.core.choice import Candidate, decide, matches


@pytest.mark.parametrize(
    "path", ["a.py", "pkg/a.pyi", "n/b.ipynb", "pyproject.toml", "setup.cfg", "x.ini", "LICENSE.txt", "d/e.rst"]
)
def test_the_kinds_of_a_python_project_travel(path):
    assert decide(Candidate(path, True), [], []).packed
    assert decide(Candidate(path, None), [], []).packed


@pytest.mark.parametrize("path", ["data.csv", "x/figure.png", "model.bin", "notes"])
def test_other_kinds_stay_until_they_are_named(path):
    assert not decide(Candidate(path, True), [], []).packed
    named = decide(Candidate(path, True), [path], [])
    assert (named.packed, named.rule) == (True, f"runpod_include: {path}")


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".env.local",
        "deep/.netrc",
        "keys/server.pem",
        "id_rsa",
        "gha-creds-0123.json",
        ".aws/config",
        "secrets.toml",
    ],
)
def test_a_credential_stays_even_when_it_is_named(path):
    decision = decide(Candidate(path, True), ["**", path], [])
    assert not decision.packed
    assert decision.rule.startswith("credentials")


@pytest.mark.parametrize(
    "path", ["config/environment.py", "pkg/secrets.py", "pkg/credentials.py", "tests/test_keys.py"]
)
def test_a_module_with_a_suspicious_name_travels(path):
    assert decide(Candidate(path, True), [], []).packed


def test_what_git_does_not_track_stays():
    assert decide(Candidate("new.py", False), [], []).rule == "git does not track it"
    assert decide(Candidate("new.py", False), ["new.py"], []).packed


def test_exclude_wins_over_include():
    assert not decide(Candidate("a/b.py", True), ["a/**"], ["a/b.py"]).packed


def test_an_executable_script_travels():
    assert decide(Candidate("tools/hello.sh", True, script=True), [], []).packed
    assert not decide(Candidate("tools/hello.sh", True, script=False), [], []).packed


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("a/b/c.csv", "*.csv", True),
        ("a/b/c.csv", "a/*.csv", False),
        ("a/b/c.csv", "a/**/*.csv", True),
        ("a/c.csv", "a/**/*.csv", True),
        ("a/b/c.csv", "a/", True),
        ("ab/c.csv", "a/", False),
        ("a.csv", "?.csv", True),
        ("x[1].csv", "x[[]1].csv", True),
        ("b.csv", "[!a].csv", True),
    ],
)
def test_patterns_are_read_as_git_reads_them(path, pattern, expected):
    assert matches(path, pattern) is expected
