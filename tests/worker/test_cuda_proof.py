"""The proof that a kernel ran: a flag is not enough, and without a proof no test runs."""

import json
import sys
import types

import pytest


def stub_torch(**cuda):
    functions = {name: (lambda *_, value=value: value) for name, value in cuda.items()}
    return types.SimpleNamespace(
        __version__="2.8.0", version=types.SimpleNamespace(cuda="12.8"), cuda=types.SimpleNamespace(**functions)
    )


@pytest.mark.parametrize(
    ("torch", "error"),
    [
        (None, "ModuleNotFoundError"),
        (stub_torch(is_available=False, device_count=0), "torch sees no CUDA device"),
        (stub_torch(is_available=True, device_count=0), "torch sees no CUDA device"),
    ],
)
def test_a_flag_is_no_proof(worker_path, monkeypatch, torch, error):
    import cuda_proof

    monkeypatch.setitem(sys.modules, "torch", torch)
    proof = cuda_proof.main("f" * 32, "NVIDIA RTX A4000")
    assert proof["cuda_executed"] is False
    assert error in proof["error"]
    assert proof["nonce"] == "f" * 32


def test_without_a_proof_no_test_runs_and_the_job_says_why(bench, tmp_path):
    mark = tmp_path / "executed"
    bench.monkeypatch.setenv("PYTEST_RUNPOD_DEVICE", "cuda")
    bench.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    source = f"open({str(mark)!r}, 'w').close()\ndef test_x(): pass\n"
    output = bench.run(bench.input({"test_x.py": source}, ["test_x.py::test_x"], run={"device": "cuda"}))
    assert output.error.startswith("cuda_proof: ")
    assert output.step("cuda_proof")["status"] == "failed"
    assert output.json("proof.json") == output.value["proof"]
    assert output.value["proof"]["cuda_executed"] is False
    assert output.outcomes() == {}
    assert not mark.exists()


def test_on_the_cpu_the_proof_says_that_this_was_none(bench):
    output = bench.run(bench.input({"test_x.py": "def test_x(): pass\n"}, ["test_x.py::test_x"]))
    expected = {"device": "cpu", "cuda_executed": False, "skipped": "device=cpu: no CUDA validation"}
    assert output.json("proof.json") == output.value["proof"] == expected


def test_the_proof_is_found_among_other_words_and_only_that_of_this_submission(worker_path):
    import job

    good = {"cuda_executed": True, "nonce": "a", "error": None}
    assert job.proof_in(f"warning\n{json.dumps(good)}\n3\nlast words\n", "a") == good
    assert job.proof_in(json.dumps({**good, "nonce": "b"}), "a")["cuda_executed"] is False
    assert job.proof_in("", "a")["cuda_executed"] is False
