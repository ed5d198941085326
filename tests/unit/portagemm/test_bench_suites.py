"""Suites: which shapes, reproducible, and how a part of them is chosen."""

from __future__ import annotations

import pytest

from portagemm.bench import suites

pytestmark = pytest.mark.quick


def test_dense16_is_the_large_shapes_in_both_dtypes() -> None:
    cases = suites.suite("dense16")
    assert len(cases) == 24
    assert {case.dtype for case in cases} == {"bf16", "fp16"}
    assert all(case.layout == "NT" and case.m >= 128 and case.batch == 1 for case in cases)
    assert all(case.timings == ("alone", "chain") for case in cases)
    assert (4096, 129280, 7168) in {case.shape for case in cases}


def test_random_is_reproducible_and_differs_by_seed() -> None:
    assert suites.suite("random", 20260101) == suites.suite("random", 20260101)
    assert suites.suite("random", 20260101) != suites.suite("random", 20260102)


@pytest.mark.parametrize("seed", [1, 20261129, 20301231])
def test_random_is_outside_all_other_suites_and_covers_the_ground(seed: int) -> None:
    cases = suites.suite("random", seed)
    others = {c.shape for name in suites.SUITES if name != "random" for c in suites.suite(name, seed)}
    assert len(cases) == suites.RANDOM_COUNT
    assert not others & {case.shape for case in cases}
    assert {case.layout for case in cases} == {"NN", "NT", "TN", "TT"}
    assert {case.dtype for case in cases} == {"bf16", "fp16", "fp32"}
    assert sum(case.k % 8 != 0 for case in cases) > 10
    assert sum(case.k % 64 == 0 for case in cases) > 10
    assert any(case.batch > 1 for case in cases)
    assert all(min(case.shape) >= 1 and case.flop <= 2e12 for case in cases)


def test_rows_cut_a_suite_into_disjoint_parts() -> None:
    cases = suites.suite("dense16")
    parts = [case for k in (1, 2, 3) for case in suites.part(cases, f"{k}/3", None)]
    assert sorted(map(str, parts)) == sorted(map(str, cases))
    assert suites.part(cases, None, 2) == cases[:2]


@pytest.mark.parametrize("rows", ["0/2", "3/2", "x", "1", "1/", "/2", "-1/2"])
def test_bad_rows_say_what_is_allowed(rows: str) -> None:
    with pytest.raises(ValueError, match="allowed: K/N"):
        suites.part(suites.suite("dense16"), rows, None)


def test_unknown_suite_lists_the_names() -> None:
    with pytest.raises(ValueError, match="decode16, dense16, host, layouts16, mma_sync16, random"):
        suites.suite("nope")


def test_timings_can_be_restricted() -> None:
    cases = suites.with_timings(suites.suite("dense16"), ["chain"])
    assert all(case.timings == ("chain",) for case in cases)
    assert all(c.timings == ("alone",) for c in suites.with_timings(suites.suite("host"), ["chain"]))
