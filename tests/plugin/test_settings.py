"""Options, variables and ini keys: one frozen value, or every problem at once; nothing is created."""

import pytest

from pytest_runpod.core.money import MicroUsd
from pytest_runpod.errors import SettingsRefused
from pytest_runpod.options import parse_settings

SHA = "a" * 64


def parse(tmp_path, options=None, environ=None, ini=None):
    return parse_settings(options or {}, environ or {}, ini or {}, tmp_path, tmp_path / "cwd")


def test_an_option_wins_over_a_variable_and_that_over_the_ini_file(tmp_path):
    ini = {"runpod_gpu": "from ini", "runpod_provider": "emulator"}
    assert parse(tmp_path, ini=ini).gpu == "from ini"
    environ = {"PYTEST_RUNPOD_GPU": "from variable"}
    assert parse(tmp_path, ini=ini, environ=environ).gpu == "from variable"
    assert parse(tmp_path, {"gpu": "from option"}, environ, ini).gpu == "from option"


def test_all_problems_are_named_at_once(tmp_path):
    with pytest.raises(SettingsRefused) as refused:
        parse(
            tmp_path,
            {
                "device": "cpu",
                "approved_sha": "12ab",
                "workers": "9",
                "budget": "lots",
                "image": "img:latest",
                "env": ["A=1"],
            },
            {"PYTEST_RUNPOD_JOBS_URL": "https://user:pw@host"},
            {"runpod_gpuu": "x", "runpod_commands": ["no separator"]},
        )
    text = str(refused.value)
    assert refused.value.exit_code == 4
    for part in (
        "--runpod-device=cpu",
        "SHA-256",
        "from 1 to 3",
        "'lots'",
        "digest",
        "'A'",
        "JOBS_URL",
        "runpod_gpuu",
        "name = command",
    ):
        assert part in text
    assert "pw" not in text


def test_the_key_is_read_from_the_environment_and_never_shown(tmp_path):
    settings = parse(tmp_path, environ={"RUNPOD_API_KEY": "rpa_secret"})
    assert settings.key == "rpa_secret"
    assert "rpa_secret" not in repr(settings)


def test_paths_of_options_start_where_pytest_was_started_those_of_the_ini_file_at_the_root(tmp_path):
    assert parse(tmp_path, {"output": "out"}).output == tmp_path / "cwd" / "out"
    assert parse(tmp_path, ini={"runpod_output": "out"}).output == tmp_path / "out"


def test_a_budget_bounds_each_stage_too(tmp_path):
    caps = parse(tmp_path, {"budget": "1.50"}).caps
    assert (caps.run, caps.stage) == (MicroUsd(1_500_000), MicroUsd(1_500_000))


def test_nothing_of_the_providers_own_variables_can_be_passed_to_tests(tmp_path):
    with pytest.raises(SettingsRefused, match="cannot use"):
        parse(tmp_path, {"env": ["RUNPOD_API_KEY"]})


def test_a_digest_is_taken_whole_or_not_at_all(tmp_path):
    assert parse(tmp_path, {"approved_sha": SHA.upper()}).approved_sha == SHA
    for wrong in (SHA[:-1], SHA + "a", "g" * 64):
        with pytest.raises(SettingsRefused):
            parse(tmp_path, {"approved_sha": wrong})


@pytest.mark.parametrize(
    ("arguments", "ini", "message"),
    [
        (["--runpod", "--runpod-device=cpu"], "", "*--runpod-device=cpu is for*"),
        (["--runpod"], "runpod_gpuu = x", "*runpod_gpuu is not known*"),
        (["--runpod", "--pdb"], "", "*--pdb cannot reach a worker*"),
    ],
)
def test_pytest_ends_with_a_usage_error(pytester, arguments, ini, message):
    pytester.makeini(f"[pytest]\n{ini}\n")
    pytester.makepyfile("def test_it(): raise AssertionError('must not run')")
    result = pytester.runpytest_subprocess(*arguments)
    assert result.ret == 4
    result.stderr.fnmatch_lines([message])
