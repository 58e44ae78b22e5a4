"""The start of a worker, as the endpoint's command does it: loader, bootstrap, a stand-in for uv. No network."""

import os
import shlex
import subprocess
import sys
import time

import pytest

from pytest_runpod.core.wire import endpoint_env, start_command
from tests.worker.conftest import WORKER

GOOD_UV = r"""#!/bin/sh
for last; do :; done
if [ "$1" = venv ]; then
  mkdir -p "$last/bin"
  printf '#!/bin/sh\necho "$PPID" "$@"; env\n' > "$last/bin/python"
  chmod +x "$last/bin/python"
else
  echo "installed: $*" > "$HOME/uv.log"
fi
"""


def start(tmp_path, uv=GOOD_UV, **changes):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    if uv is not None:
        (programs / "uv").write_text(uv)
        (programs / "uv").chmod(0o755)
    files = {path.name: path.read_text(encoding="utf-8") for path in WORKER.iterdir() if path.is_file()}
    files.update(changes.pop("files", {}))
    env = {
        **endpoint_env(files, "a" * 64, "cpu"),
        "HOME": str(tmp_path),
        "PATH": f"{programs}:/usr/bin:/bin",
        **changes,
    }
    return subprocess.run(shlex.split(start_command()), env=env, capture_output=True, text=True, timeout=60)


def test_the_bootstrap_becomes_the_worker_and_hands_on_what_it_knows(tmp_path):
    done = start(tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("pytest-runpod: SDK ready after")
    parent, *words = said[1].split()
    assert words == ["-u", str(tmp_path / ".pytest-runpod/worker/handler.py")]
    assert int(parent) == os.getpid()  # replaced, not started: no process is left between the provider and the SDK
    env = dict(line.split("=", 1) for line in said[2:] if "=" in line)
    assert time.time() + 1400 < float(env["PYTEST_RUNPOD_WALL_AT"]) < time.time() + 1500
    assert env["PYTEST_RUNPOD_IMAGE_PYTHON"].endswith("python3")
    assert "site-packages" in env["PYTEST_RUNPOD_IMAGE_PATHS"]


def test_every_hash_of_the_sdk_is_checked(tmp_path):
    start(tmp_path)
    said = (tmp_path / "uv.log").read_text()
    assert "--no-deps --require-hashes" in said
    lines = (WORKER / "sdk.lock").read_text().splitlines()
    assert lines
    assert all("==" in line.split(" ")[0] and " --hash=sha256:" in line for line in lines)
    assert [line.split(" ")[0] for line in lines if line.startswith("runpod=")] == ["runpod==1.12.0"]


def test_a_failed_install_ends_the_worker_with_the_installers_words(tmp_path):
    done = start(tmp_path, uv="#!/bin/sh\necho 'hash mismatch for runpod' >&2\nexit 2\n")
    assert done.returncode == 1
    assert "the SDK could not be installed" in done.stderr
    assert "hash mismatch for runpod" in done.stderr
    assert "SDK ready" not in done.stdout


def test_without_uv_and_without_an_index_the_worker_ends_and_says_what_it_tried(tmp_path):
    done = start(tmp_path, uv=None, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert done.returncode == 1
    assert "the SDK could not be installed" in done.stderr
    assert "--require-hashes" in done.stderr
    assert "SDK ready" not in done.stdout


def test_an_install_that_takes_too_long_ends_the_worker(tmp_path):
    limits = (WORKER / "limits.py").read_text().replace("SDK_INSTALL_S = 120", "SDK_INSTALL_S = 1")
    done = start(tmp_path, uv="#!/bin/sh\nexec sleep 600\n", files={"limits.py": limits})
    assert done.returncode == 1
    assert "the SDK could not be installed" in done.stderr
    assert "timed out" in done.stderr


def test_the_wall_timer_ends_the_worker_whatever_it_is_doing(tmp_path):
    limits = (WORKER / "limits.py").read_text().replace("WORKER_WALL_S = 1500", "WORKER_WALL_S = 1")
    done = start(tmp_path, uv="#!/bin/sh\nsleep 4\n", files={"limits.py": limits})
    assert done.returncode == 1
    assert "the wall timer has expired" in done.stderr


def test_an_install_that_changes_torch_ends_the_worker(tmp_path, monkeypatch, worker_path):
    import bootstrap

    seen = iter([("2.8.0", "/image/torch"), ("2.9.0", "/elsewhere/torch")])
    monkeypatch.setattr(bootstrap, "torch_identity", lambda: next(seen))
    monkeypatch.setattr(bootstrap, "install_sdk", lambda *_: tmp_path / "python")
    monkeypatch.setattr(bootstrap, "start_wall_timer", lambda _: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTEST_RUNPOD_WALL_AT", "")
    with pytest.raises(SystemExit, match="changed the image's torch"):
        bootstrap.main({})


def test_a_bundle_that_is_not_the_approved_one_is_not_executed(tmp_path):
    done = start(tmp_path, PYTEST_RUNPOD_WORKER_SHA256="0" * 64)
    assert done.returncode == 1
    assert "the bundle is not the approved one" in done.stderr
    assert not (tmp_path / ".pytest-runpod").exists()


def test_the_bundle_fits_into_one_variable():
    files = {path.name: path.read_text(encoding="utf-8") for path in WORKER.iterdir() if path.is_file()}
    assert len(endpoint_env(files, "a" * 64, "cpu")["PYTEST_RUNPOD_BUNDLE"]) < 45_000
