"""The built-in profiles: valid, sourced, documented, and true to the limits they state."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from portagemm.hal import dtypes, profile, profile_file

pytestmark = pytest.mark.quick

FOLDER = Path(profile.builtin()["cpu"].path).parent
NAMES = ("a100", "cpu", "h100", "mi250x", "mi300x", "mi355x", "rtx4090", "rx7900xtx")


def test_the_profiles_are_there() -> None:
    assert tuple(profile.builtin()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_valid_by_schema(name: str) -> None:
    loaded = profile.load(FOLDER / f"{name}.yaml", validate=True)
    assert loaded.name == name


def test_schema_is_a_schema() -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(json.loads((FOLDER / "schema.json").read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_unvalidated_and_validated_agree(name: str) -> None:
    file = FOLDER / f"{name}.yaml"
    a, b = profile.load(file, validate=False), profile.load(file)
    assert vars(a) == vars(b)


@pytest.mark.parametrize("name", NAMES)
def test_glance_agrees_with_the_file(name: str) -> None:
    p = profile.get(name)
    assert profile_file.glance(name) == (p.backend, p.matches)


@pytest.mark.parametrize("name", NAMES)
def test_every_group_of_facts_has_a_source(name: str) -> None:
    data = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    groups = [data, data["limits"], data["dtypes"], *data["atoms"].values(), *data["copies"].values()]
    groups += [*data.get("decompression", {}).values(), *data.get("quirks", []), *data["boards"]]
    assert all(len(group["source"]) > 10 for group in groups)


def test_readme_explains_every_key() -> None:
    readme = (FOLDER / "README.md").read_text()
    keys: set[str] = set()

    def collect(schema: object) -> None:
        if isinstance(schema, dict):
            for name, value in schema.items():
                if name == "properties":
                    keys.update(value)
                collect(value)

    collect(json.loads((FOLDER / "schema.json").read_text()))
    assert not {key for key in keys if f"`{key}`" not in readme}


@pytest.mark.parametrize("name", NAMES)
def test_tiles_fit_the_limits(name: str) -> None:
    """Stages of A and B of two-byte operands (four for fp32) fit shared memory."""
    p = profile.get(name)
    size = {**{d.name: d.bytes for d in dtypes.ALL}, "tf32": 4}
    for schedule, tiles in p.tiles.items():
        for tile in tiles:
            m, n, k = tile.block
            atom = p.atoms[tile.atom]
            smallest = min(size[dtype] for dtype in atom.a)
            need = tile.stages * (m + n) * k * smallest
            assert need <= p.limits.shared_bytes_per_block, f"{name} {schedule} {tile}: {need} bytes"


@pytest.mark.parametrize("name", NAMES)
def test_every_supported_dtype_has_a_tile(name: str) -> None:
    p = profile.get(name)
    covered = {d for tiles in p.tiles.values() for tile in tiles for d in p.atoms[tile.atom].a}
    assert {"fp16", "bf16", "fp32"} <= covered


@pytest.mark.parametrize("name", NAMES)
def test_last_schedule_is_the_one_every_arch_has(name: str) -> None:
    assert profile.get(name).schedules[-1] == "single_buffer"


def test_facts_that_are_easy_to_get_wrong() -> None:
    """Each with the folklore it is not."""
    p = profile.builtin()
    assert p["rtx4090"].limits.threads_per_block == 1024  # 1536 is residency
    assert p["rtx4090"].limits.shared_bytes_per_block == 99 * 1024
    assert p["a100"].limits.shared_bytes_per_block == 163 * 1024
    assert p["h100"].limits.shared_bytes_per_block == 227 * 1024
    assert p["h100"].atoms["wgmma"].shape == (64, 8, 16) and p["h100"].atoms["wgmma"].n_max == 256
    assert "cluster" in p["h100"].scopes and "cluster" not in p["rtx4090"].scopes
    assert "e4m3" in p["rtx4090"].native and "e4m3" not in p["a100"].native
    assert p["mi250x"].wave_size == 64 and "e4m3" in p["mi250x"].emulated
    assert p["mi250x"].has_quirk("mfma_flushes_subnormals")
    assert p["mi300x"].limits.shared_bytes_per_block == 64 * 1024
    assert p["mi355x"].limits.shared_bytes_per_block == 160 * 1024
    assert "e4m3fnuz" in p["mi300x"].native and "e4m3" in p["mi355x"].native  # gfx942 is FNUZ, gfx950 OCP
    assert not p["mi300x"].has_quirk("mfma_flushes_subnormals")
    assert p["rx7900xtx"].wave_size == 32 and p["rx7900xtx"].atoms["wmma_16x16x16"].lanes == 32
    assert {name for name in NAMES if p[name].forward_compatible} == {"a100", "rtx4090"}


def test_no_exponent_is_text() -> None:
    """YAML 1.1 reads 1e12 as text; the files write 1.0e+12."""
    for name in NAMES:
        assert not re.search(r": -?\d+e\d", (FOLDER / f"{name}.yaml").read_text())
