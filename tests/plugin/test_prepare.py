"""`--runpod-prepare` and the approval gate: what would be sent is shown, and nothing else is ever sent."""

import re

import pytest


@pytest.fixture
def project(pytester):
    pytester.makepyfile(test_it="def test_it(): pass")
    pytester.path.joinpath("data.csv").write_text("1,2\n")
    return pytester


def prepared(project, *arguments) -> tuple[str, str]:
    result = project.runpytest_subprocess("--runpod-prepare", "--runpod-state=state", *arguments)
    assert result.ret == 0
    text = result.stdout.str()
    return re.search(r"^payload_sha256: ([0-9a-f]{64})$", text, re.M).group(1), text


def test_prepare_prints_digests_files_and_what_stays(project):
    digest, text = prepared(project)
    assert re.search(r"^worker_sha256: [0-9a-f]{64}$", text, re.M)
    assert re.search(r"0644 +\d+  test_it.py", text)
    assert "data.csv  (kind: not one that is packed by default)" in text
    assert prepared(project)[0] == digest
    assert prepared(project, "--runpod-include=data.csv")[0] != digest


def test_a_collection_error_does_not_keep_anybody_from_reading_what_would_be_sent(project):
    project.makepyfile(test_broken="import nothing_of_that_name")
    prepared(project)


@pytest.mark.parametrize("given", [None, "b" * 64])
def test_without_the_right_digest_nothing_happens_at_all(project, monkeypatch, given):
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_nobody")
    monkeypatch.setenv(
        "PYTEST_RUNPOD_MANAGEMENT_URL", "http://127.0.0.1:9"
    )  # nothing listens there: any request would fail
    monkeypatch.setenv("PYTEST_RUNPOD_JOBS_URL", "http://127.0.0.1:9")
    arguments = [f"--approved-sha={given}"] if given else []
    result = project.runpytest_subprocess("--runpod", "--runpod-state=state", *arguments)
    assert result.ret == 10
    result.stdout.fnmatch_lines(
        ["*Nothing was created, nothing was billed.", "*looked at: *packed *", "*to do: *--runpod-prepare*"]
    )
    assert not project.path.joinpath("state", "ledger.json").exists()
    assert not project.path.joinpath("state", "receipts").exists()


def test_a_changed_byte_is_named(project, monkeypatch):
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_nobody")
    digest, _ = prepared(project)
    project.makepyfile(test_it="def test_it(): pass # changed")
    result = project.runpytest_subprocess("--runpod", "--runpod-state=state", f"--approved-sha={digest}")
    assert result.ret == 10
    result.stdout.fnmatch_lines(["*1 differ: changed test_it.py*"])


def test_a_conftest_may_change_what_is_packed_and_that_is_part_of_the_digest(project):
    digest, _ = prepared(project)
    project.makeconftest(
        "from pytest_runpod.core.manifest import PackedFile\n"
        "def pytest_runpod_payload_files(config, files):\n    files.append(PackedFile('generated.json', b'{}'))\n"
    )
    other, text = prepared(project)
    assert other != digest
    assert "generated.json" in text


def test_a_conftest_may_implement_any_one_of_the_hooks(project):
    project.makeconftest("def pytest_runpod_results(config, folder, summary):\n    pass\n")
    digest, _ = prepared(project)
    assert len(digest) == 64
