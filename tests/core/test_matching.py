"""Lines and items find each other by id and occurrence; windows may overlap, repeat, and leave gaps."""

from hypothesis import given
from hypothesis import strategies as st

from pytest_runpod.core.matching import Matcher

IDS = ["a", "b", "a", "c[::]"]


def lines_of(nodeid: str, number: int, mark: str = "") -> list[dict]:
    edge = {"id": nodeid, "n": number}
    return [
        {"kind": "start", **edge},
        {"kind": "report", **edge, "report": {"text": f"{nodeid}{number}{mark}"}},
        {"kind": "finish", **edge},
    ]


ALL = [{"kind": "session"}, *lines_of("b", 1), *lines_of("a", 1), *lines_of("c[::]", 1), *lines_of("a", 2)]


@given(st.lists(st.tuples(st.integers(0, len(ALL)), st.integers(0, 4)), max_size=6))
def test_any_cut_into_overlapping_windows_gives_each_item_once(cuts):
    matcher = Matcher.of(IDS)
    seen = []
    position = 0
    for end, overlap in [*sorted(cuts), (len(ALL), 0)]:
        first = max(0, position - overlap)
        seen += matcher.window("att", first, ALL[first:end])
        position = max(position, end)
    assert sorted(one.key for one in seen) == [("a", 1), ("a", 2), ("b", 1), ("c[::]", 1)]
    assert matcher.final("att", ALL[1:]) == []
    assert all(len(one.reports) == 1 for one in seen)
    assert matcher.missing() == []
    assert matcher.different == []


def test_a_gap_is_filled_by_the_final_archive():
    matcher = Matcher.of(IDS)
    assert [one.key for one in matcher.window("att", 5, ALL[5:])] == [("c[::]", 1), ("a", 2)]
    assert [one.key for one in matcher.final("att", ALL)] == [("b", 1), ("a", 1)]


def test_a_report_that_changed_afterwards_is_named():
    matcher = Matcher.of(["a"])
    matcher.window("att", 0, lines_of("a", 1))
    matcher.final("att", lines_of("a", 1, "other"))
    assert matcher.different == [("a", 1)]


def test_a_second_attempt_of_the_platform_does_not_mix_with_the_first():
    matcher = Matcher.of(["a", "b"])
    matcher.window("first", 0, lines_of("a", 1))
    assert matcher.window("second", 0, lines_of("a", 1)) == []
    assert [one.key for one in matcher.final("att", [*lines_of("a", 1), *lines_of("b", 1)])] == [("b", 1)]


def test_a_test_whose_process_died_is_done_and_says_how():
    matcher = Matcher.of(["a"])
    (one,) = matcher.final(
        "att", [{"kind": "start", "id": "a", "n": 1}, {"kind": "died", "id": "a", "n": 1, "cause": "signal SIGSEGV"}]
    )
    assert one.death is not None
    assert matcher.missing() == []


def test_a_rerun_is_a_further_try_of_the_same_item_and_both_are_handed_out():
    def lines(attempt, outcome):
        edge = {"id": "a", "n": 1, "try": attempt}
        return [
            {"kind": "start", **edge},
            {"kind": "report", **edge, "report": {"outcome": outcome}},
            {"kind": "finish", **edge},
        ]

    matcher = Matcher.of(["a"])
    told = matcher.window("x", 0, lines(1, "rerun"))
    told += matcher.final("att", [*lines(1, "rerun"), *lines(2, "passed")])
    assert [[report["outcome"] for report in one.reports] for one in told] == [["rerun"], ["passed"]]
    assert (matcher.missing(), matcher.different) == ([], [])


def test_what_was_cut_to_fit_into_the_archive_is_no_difference():
    def lines(report):
        return [
            {"kind": "start", "id": "a", "n": 1},
            {"kind": "report", "id": "a", "n": 1, "report": report},
            {"kind": "finish", "id": "a", "n": 1},
        ]

    matcher = Matcher.of(["a"])
    matcher.window("x", 0, lines({"longrepr": "long"}))
    matcher.final("att", lines({"longrepr": "l", "_runpod.cut": 3}))
    assert matcher.different == []


def test_of_a_job_that_ran_again_only_the_outcomes_must_be_the_same():
    def lines(outcome, duration):
        report = {"when": "call", "outcome": outcome, "duration": duration}
        return [
            {"kind": "start", "id": "a"},
            {"kind": "report", "id": "a", "report": report},
            {"kind": "finish", "id": "a"},
        ]

    for outcome, different in (("passed", []), ("failed", [("a", 1)])):
        matcher = Matcher.of(["a"])
        assert len(matcher.window("first", 0, lines("passed", 1))) == 1
        assert matcher.final("second", lines(outcome, 2)) == []
        assert matcher.different == different
