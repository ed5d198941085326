"""The bars: at least 42 of the reported failures are found by a check, at least 54 by a check or their text."""

from __future__ import annotations

from portagemm.doctor.ranks import Ranks

from . import coverage, machine_files
from .failure_reports import REPORTS
from .message_cases import EXCERPTS
from .test_cluster import MUTATIONS, WORLD, fired, reports


def test_reports_are_found_by_checks() -> None:
    """What a fixture claims, the check finds on it: the number rests on what was run."""
    found = set()
    for number, claims in coverage.by_check().items():
        for check_id, fixture in claims:
            if fixture.startswith("ranks: "):
                ranks = reports()
                MUTATIONS[fixture.removeprefix("ranks: ")][0](ranks[1])
                ids = set(fired(Ranks(tuple(ranks), WORLD)))
            elif fixture.startswith("smoke: "):
                continue  # test_smoke.test_one_fault_fires_one_check runs each of them
            else:
                ids = {item.split()[1] for item in machine_files.findings(machine_files.examine(fixture))}
            assert check_id in ids, (number, check_id, fixture)
        found.add(number)
    assert found <= set(REPORTS)
    assert len(found) >= 42


def test_reports_are_explained_by_a_check_or_by_their_text() -> None:
    messages = {number for number, ids in coverage.by_message().items() if ids}
    assert len(messages | set(coverage.by_check())) >= 54
    assert messages == set(REPORTS), "every report has a text that is recognised"


def test_every_report_has_an_excerpt_of_other_words_than_the_table() -> None:
    """No excerpt is a phrase of the table: each has something before, after or within it."""
    from portagemm.doctor import match

    phrases = {phrase for message in match.MESSAGES for phrase in message.phrases}
    assert {excerpt.report for excerpt in EXCERPTS} == set(REPORTS)
    assert not [excerpt.text for excerpt in EXCERPTS if excerpt.text in phrases]


def test_every_message_is_of_a_report_or_has_an_excerpt() -> None:
    from portagemm.doctor import match
    from portagemm.doctor.check import all_checks

    checks = set(all_checks())
    for message in match.MESSAGES:
        assert set(message.checks) <= checks, (message.id, set(message.checks) - checks)


def test_page_is_up_to_date() -> None:
    assert coverage.PAGE.read_text("utf-8") == coverage.page(), "run: python -m tests.doctor.coverage"
