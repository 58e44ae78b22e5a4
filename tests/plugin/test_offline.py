"""Everybody else's pytest: the plugin is installed, and nobody notices."""

import pytest

HAS_CUDA_STUB = """
import sys, types
torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_available=lambda: {available})
sys.modules["torch"] = torch
"""

CUDA_TEST = """
import pytest

@pytest.mark.cuda
def test_needs_cuda(device):
    assert device == "cuda"

def test_takes_what_is_there(device):
    assert device in ("cuda", "cpu")
"""


@pytest.mark.parametrize(("available", "passed", "skipped"), [(False, 1, 1), (True, 2, 0)])
def test_a_cuda_test_skips_with_a_reason_where_torch_has_no_cuda(pytester, available, passed, skipped):
    pytester.makeconftest(HAS_CUDA_STUB.format(available=available))
    pytester.makepyfile(CUDA_TEST)
    result = pytester.runpytest_subprocess("-rs", "--strict-markers")
    result.assert_outcomes(passed=passed, skipped=skipped)
    if skipped:
        result.stdout.fnmatch_lines(["SKIPPED*torch has no CUDA here"])


def test_artifacts_of_a_local_run_go_to_a_temporary_folder(pytester):
    pytester.makepyfile(
        """
        def test_writes(runpod_artifacts, tmp_path_factory):
            (runpod_artifacts / "figure.txt").write_text("x")
            assert runpod_artifacts.is_relative_to(tmp_path_factory.getbasetemp())
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_hooks_in_a_conftest_are_accepted_without_a_remote_run(pytester):
    pytester.makeconftest("def pytest_runpod_payload_files(config, files):\n    raise AssertionError('not called')\n")
    pytester.makepyfile("def test_it(): pass")
    pytester.runpytest_subprocess("-W", "error", "-p", "no:asyncio").assert_outcomes(passed=1)


def test_warnings_as_errors_find_none_of_ours(pytester):
    pytester.makepyfile("def test_it(): pass")
    pytester.makeini("[pytest]\nfilterwarnings = error\nrunpod_include = data/**\n")
    pytester.runpytest_subprocess("--strict-config", "-p", "no:asyncio").assert_outcomes(passed=1)


def test_with_the_plugin_switched_off_nothing_of_it_is_there(pytester):
    pytester.makepyfile("def test_it(request): assert not request.config.pluginmanager.has_plugin('runpod')")
    pytester.runpytest_subprocess("-p", "no:runpod").assert_outcomes(passed=1)
