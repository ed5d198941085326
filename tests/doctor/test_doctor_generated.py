"""What is made from the checks and the profiles is up to date: tables.json, docs/doctor, and links to them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from portagemm.doctor.check import GROUPS, all_checks
from portagemm.doctor.pages import pages
from portagemm.doctor.tables import compiled_targets, tables
from portagemm.hal import profile

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.quick
def test_pages_and_tables_are_up_to_date() -> None:
    if not (ROOT / ".ci/generate_doctor.py").exists():
        pytest.skip("not a checkout: the generator is no part of the distribution")
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci/generate_doctor.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.quick
def test_tables_agree_with_the_profiles() -> None:
    assert set(tables()["profiles"]) == set(profile.builtin())
    assert "gfx90a" in compiled_targets("rocm") and "sm_90" in compiled_targets("cuda")


@pytest.mark.quick
def test_every_check_has_its_place_in_the_pages() -> None:
    made = pages()
    for item in all_checks().values():
        assert f"\n## {item.id}\n" in made[f"{item.group}.md"]
        assert f"`{item.id}`" in made["README.md"]
    assert set(made) == {"README.md"} | {f"{item.group}.md" for item in all_checks().values()}
    assert {item.group for item in all_checks().values()} == set(GROUPS)


@pytest.mark.quick
def test_links_in_the_pages_lead_somewhere() -> None:
    made = pages()
    headings = {
        name: {
            re.sub(r"[^\w -]", "", line[3:]).lower() for line in text.splitlines() if line.startswith("## ")
        }
        for name, text in made.items()
    }
    for name, text in made.items():
        for target, anchor in re.findall(r"\]\(([\w.]+)(?:#([\w-]+))?\)", text):
            assert target in made, f"{name}: {target}"
            assert not anchor or anchor in headings[target], f"{name}: {target}#{anchor}"


@pytest.mark.quick
def test_the_fixture_format_is_described_as_it_is() -> None:
    """The example machines use no section that the page leaves out."""
    text = (ROOT / "docs/doctor-fixtures.md").read_text("utf-8")
    used = set()
    for path in (Path(__file__).parent / "machines").rglob("*.machine"):
        used |= set(re.findall(r"^--- ([\w-]+)", path.read_text("utf-8"), re.MULTILINE))
    for word in used - {"story"}:
        assert f"--- {word}" in text, word


@pytest.mark.quick
def test_the_schema_is_valid_json_and_named_by_version() -> None:
    schema = json.loads((ROOT / "portagemm/doctor/report_schema.json").read_text("utf-8"))
    assert schema["$id"] == f"urn:portagemm:doctor-report:{schema['properties']['schema_version']['const']}"
