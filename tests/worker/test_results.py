"""Packing and JUnit XML: what counts comes back, whatever else was written."""

import json
import os
from xml.etree import ElementTree

import pytest

from pytest_runpod.core.unpack import read_archive
from pytest_runpod.core.wire import BOUNDS


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    for name in ("reports.jsonl", "junit.xml", "logs/pytest.txt", "notebooks/n.ipynb", "artifacts/a/small.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def pack(out, limit=1_000_000, **bounds):
    import results
    import unpack

    allowed = {"members": BOUNDS.members, "member": BOUNDS.member, "total": BOUNDS.total, "path": BOUNDS.path, **bounds}
    packed = results.pack(out, limit, unpack.Bounds(**allowed))
    names = [member.path for member in read_archive(packed.blob, BOUNDS)] if packed.blob else []
    return names, [entry["path"] for entry in packed.left_out], packed


def test_equal_content_packs_to_equal_bytes(worker_path, out):
    first = pack(out)[2].blob
    for path in out.rglob("*"):
        os.utime(path, (1, 1))
    assert pack(out)[2].blob == first


@pytest.mark.parametrize("odd", ["a\\b", "two\nlines", "x" * 250 + "/" + "y" * 200, "A/SMALL.TXT", "a/small.txt/below"])
def test_an_artifact_with_a_name_that_the_reader_refuses_does_not_cost_the_outcomes(worker_path, out, odd):
    path = out / "artifacts" / odd
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # a folder named like a file that is there, but for its case
        path = out / "artifacts" / odd.upper()
        path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("odd")
    names, left_out, _ = pack(out)
    assert {"reports.jsonl", "junit.xml", "logs/pytest.txt"} <= set(names)
    assert len(left_out) == 1
    assert left_out[0].startswith("artifacts/")


def test_a_name_that_is_no_text_is_left_out_and_the_output_is_still_utf_8(bench):
    source = (
        "import os\n"
        "def test_odd(runpod_artifacts):\n"
        "    (runpod_artifacts / 'good.txt').write_text('kept')\n"
        "    with open(os.fsencode(runpod_artifacts) + b'/\\xff.txt', 'w') as file:\n"
        "        file.write('odd')\n"
    )
    output = bench.run(bench.input({"test_o.py": source}, ["test_o.py::test_odd"]))
    json.dumps(output.value, ensure_ascii=False).encode("utf-8")
    assert [entry["size"] for entry in output.value["left_out"]] == [3]
    assert [path for path in output.files if path.endswith("good.txt")]


def test_links_are_not_followed_and_are_named(worker_path, out):
    (out / "artifacts" / "link.txt").symlink_to("/etc/passwd")
    names, left_out, _ = pack(out)
    assert left_out == ["artifacts/link.txt"]
    assert "artifacts/link.txt" not in names


def test_too_many_members_cost_artifacts_and_not_outcomes(worker_path, out):
    for number in range(20):
        (out / "artifacts" / f"{number}.txt").write_text("x")
    names, left_out, _ = pack(out, members=10)
    assert len(names) == 10
    assert {"reports.jsonl", "junit.xml", "logs/pytest.txt", "notebooks/n.ipynb"} <= set(names)
    assert all(path.startswith("artifacts/") for path in left_out)


def test_artifacts_go_first_then_notebooks_then_logs_the_largest_first(worker_path, out):
    for name in ("artifacts/large.bin", "artifacts/larger.bin", "notebooks/big.ipynb", "logs/long.txt"):
        (out / name).write_bytes(os.urandom(40_000 if name.endswith("larger.bin") else 30_000))
    assert pack(out, 110_000)[1] == ["artifacts/larger.bin"]
    assert pack(out, 70_000)[1] == ["artifacts/larger.bin", "artifacts/large.bin"]
    names, left_out, _ = pack(out, 20_000)
    assert left_out[:2] == ["artifacts/larger.bin", "artifacts/large.bin"]
    assert left_out[-1] == "logs/long.txt"
    assert {"reports.jsonl", "junit.xml"} <= set(names)


def test_of_very_many_names_left_out_the_output_gives_the_number(worker_path, out):
    import results

    entries = [{"path": f"artifacts/{number}", "size": 2} for number in range(5000)]
    named = results.Packed(b"", entries).fields()["left_out"]
    assert len(named) == results.LEFT_OUT_NAMED + 1
    assert named[-1] == {"path": "and 4500 more", "size": 9000}


def test_a_failure_in_the_xml_shows_its_traceback_to_other_readers(bench):
    source = "def helper():\n    raise ValueError('bad \\x1b[31m value')\ndef test_it():\n    helper()\n"
    output = bench.run(bench.input({"test_t.py": source}, ["test_t.py::test_it"]))
    (case,) = ElementTree.fromstring(output.files["junit.xml"]).iter("testcase")
    failure = case.find("failure")
    assert failure.get("message").startswith("ValueError: bad ")
    assert "    helper()" in failure.text
    assert "test_t.py:2: ValueError" in failure.text
    assert json.loads(case.find("properties/property[@name='runpod.host']").get("value"))
