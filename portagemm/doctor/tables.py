"""Facts of the arch profiles that checks need, from tables.json, which is generated from the profiles.

The profiles themselves are YAML, which the standard library cannot read; ``.ci/generate_doctor.py`` writes the
file and CI compares it.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any


@functools.cache
def tables() -> dict[str, Any]:
    """The whole file: profiles (name -> backend, vendor, arch, matches), by their name."""
    text = (Path(__file__).parent / "tables.json").read_text("utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


def compiled_targets(backend: str) -> frozenset[str]:
    """Devices' targets ("gfx90a", "sm_90"; may be patterns) portagemm has a kernel profile for."""
    profiles = tables()["profiles"].values()
    return frozenset(
        name for profile in profiles if profile["backend"] == backend for name in profile["matches"]
    )
