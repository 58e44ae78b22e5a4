"""Reading a checkout: git's view where there is git, the tree where there is none."""

import os
import subprocess

import pytest

from pytest_runpod.core.manifest import make_payload
from pytest_runpod.errors import PayloadRefused
from pytest_runpod.store.results import save
from pytest_runpod.store.tree import pack, survey


def write(root, **files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def packed_paths(root, include=(), exclude=()):
    return sorted(file.path for file in pack(root, survey(root, include, exclude)))


def test_without_git_the_tree_is_packed_less_caches_environments_and_build_output(tmp_path):
    write(tmp_path, **{
        "a.py": "", "pkg/build/b.py": "", "build/lib/a.py": "", "__pycache__/a.py": "", "x.egg-info/SOURCES.txt": "",
        "env/pyvenv.cfg": "", "env/lib/z.py": "", ".pytest_runpod/1/manifest.txt": "",
    })  # fmt: skip
    assert packed_paths(tmp_path) == ["a.py", "pkg/build/b.py"]


def test_with_git_only_what_it_tracks_is_packed(tmp_path):
    write(tmp_path, **{"a.py": "", "new.py": "", "ignored.py": "", "data.csv": ""})
    run = ["git", "-c", "init.defaultBranch=main", "-C", str(tmp_path)]
    subprocess.run([*run, "init", "-q"], check=True)
    subprocess.run([*run, "add", "a.py", "data.csv"], check=True)
    assert packed_paths(tmp_path) == ["a.py"]
    assert packed_paths(tmp_path, include=("data.csv", "new.py")) == ["a.py", "data.csv", "new.py"]


def test_modes_times_and_umask_do_not_change_the_digest(tmp_path):
    digests = set()
    for number, mode in enumerate((0o644, 0o600, 0o664)):
        root = tmp_path / str(number)
        write(root, **{"a.py": "x = 1\n", "tools/run.sh": "#!/bin/sh\n"})
        (root / "a.py").chmod(mode)
        (root / "tools/run.sh").chmod(mode | 0o100)
        os.utime(root / "a.py", (number, number))
        digests.add(make_payload(pack(root, survey(root, (), ())), "w", {}).sha256)
    assert len(digests) == 1


def test_a_link_out_of_the_project_is_refused(tmp_path):
    (tmp_path / "secret.txt").write_text("outside")
    root = tmp_path / "project"
    write(root, **{"a.py": ""})
    (root / "notes.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(PayloadRefused, match="leads out of the project"):
        pack(root, survey(root, (), ()))


def test_a_folder_of_results_is_not_packed_wherever_it_lies(tmp_path):
    write(tmp_path, **{"a.py": ""})
    save(tmp_path / "out", "notes.txt", b"x")
    assert packed_paths(tmp_path) == ["a.py"]
