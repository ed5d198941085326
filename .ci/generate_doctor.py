"""Writes what of the doctor is generated: portagemm/doctor/tables.json from the arch profiles, and the pages of
docs/doctor/ from the checks. With --check it writes nothing and fails if a file would change."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from portagemm.doctor.pages import pages

ROOT = Path(__file__).resolve().parent.parent


def tables() -> str:
    """The text of tables.json: of each built-in profile its backend, vendor, target and the devices it matches."""
    profiles = {}
    for path in sorted((ROOT / "arch_profiles").glob("*.yaml")):
        profile = yaml.safe_load(path.read_text("utf-8"))
        profiles[profile["name"]] = {
            "backend": profile["backend"],
            "vendor": profile["vendor"],
            "arch": profile["arch"],
            "matches": profile["matches"],
        }
    about = "Generated from arch_profiles/*.yaml by .ci/generate_doctor.py; do not edit."
    return json.dumps({"about": about, "profiles": profiles}, indent=1) + "\n"


def main(check: bool) -> int:
    """Write or compare; returns the exit code."""
    wanted = {ROOT / "portagemm/doctor/tables.json": tables()}
    folder = ROOT / "docs/doctor"
    wanted |= {folder / name: text for name, text in pages().items()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    left = [path for path in folder.glob("*.md") if path not in wanted]
    if check:
        for path in stale + left:
            print(
                f"{path.relative_to(ROOT)} is out of date: run python .ci/generate_doctor.py", file=sys.stderr
            )
        return 1 if stale or left else 0
    folder.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(wanted[path], "utf-8")
    for path in left:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
