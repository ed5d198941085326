"""Tuning tables: names, files, what the planner takes from them and what it ignores."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from portagemm import plan as planner
from portagemm import prebuild, tuning
from portagemm.hal import notices
from portagemm.hal import profile as profiles
from portagemm.hal.device import Device
from portagemm.hal.dtypes import BY_NAME
from portagemm.hal.profile import ArchProfile
from portagemm.problem import GemmProblem, View, build
from portagemm.tuning import Entry, Measured

pytestmark = pytest.mark.quick


@pytest.fixture
def h100() -> ArchProfile:
    return profiles.builtin()["h100"]


@pytest.fixture
def device(h100: ArchProfile) -> Device:
    return replace(prebuild.described_device(h100), name="NVIDIA Test 9000")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only table there is: the user's folder is empty and the package has none of this device."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    path = tmp_path / "table.json"
    monkeypatch.setenv(tuning.VARIABLE, str(path))
    tuning.reset()
    notices.reset()
    yield path
    tuning.reset()
    notices.reset()


def problem(
    m: int = 4096, n: int = 4096, k: int = 7168, layout: str = "NT", dtype: str = "bf16"
) -> GemmProblem:
    d = BY_NAME[dtype]
    a = View(d, (m, k), (k, 1) if layout[0] == "N" else (1, m))
    b = View(d, (k, n), (n, 1) if layout[1] == "N" else (1, k))
    return build(a, b, View(d, (m, n), (n, 1)))


def entry_for(plan: planner.GemmPlan, raster: int = 3, us: float = 100.0, sources: str = "") -> Entry:
    best = Measured(planner.name_of(plan), raster, us)
    return Entry(best, None, None, sources or tuning.sources_digest("cuda"))


def other_plan(p: GemmProblem, profile: ArchProfile, device: Device) -> planner.GemmPlan:
    """A candidate that the model does not choose."""
    model = planner.plan(p, profile, device, use_tables=False)
    return next(c for c in planner.candidates(p, profile, device) if c != model and c.tiles_m > 3)


def put(path: Path, device: Device, p: GemmProblem, entry: Entry, profile: str = "h100") -> None:
    tuning.store(path, device, tuning.key_of(p, profile), entry)
    tuning.reset()


# --- names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(profiles.builtin()))
def test_every_tile_of_a_profile_has_its_own_name(name: str) -> None:
    tiles = [(s, t) for s, all_of in profiles.builtin()[name].tiles.items() for t in all_of]
    assert len({tuning.tile_name(s, t) for s, t in tiles}) == len(set(tiles))


def test_a_name_holds_every_field(h100: ArchProfile) -> None:
    tile = h100.tiles["warp_specialized"][0]
    for f in fields(tile):
        value = getattr(tile, f.name)
        other = {"str": "x", "bool": not value}.get(type(value).__name__, 77)
        changed = replace(tile, **{f.name: (7,) * len(value) if isinstance(value, tuple) else other})
        assert tuning.tile_name("s", changed) != tuning.tile_name("s", tile), f.name


def test_the_key_is_what_speed_depends_on() -> None:
    keys = {
        tuning.key_of(p, profile)[0]
        for p in (
            problem(),
            problem(n=4104),
            problem(k=64),
            problem(layout="NN"),
            problem(layout="TN"),
            problem(layout="TT"),
            problem(dtype="fp16"),
            problem(dtype="fp32"),
            replace(problem(dtype="fp32"), precision="tf32"),
            replace(problem(), d=replace(problem().d, alignment=4)),
            replace(problem(), a=replace(problem().a, alignment=2)),
        )
        for profile in ("h100", "a100")
    }
    assert len(keys) == 22
    assert tuning.key_of(problem(m=1), "h100")[0] == tuning.key_of(problem(m=5), "h100")[0]
    p = problem()
    with_epilogue = replace(p, bias=replace(p.d, strides=(0, 1)), activation="gelu", constant_b=True)
    assert tuning.key_of(with_epilogue, "h100") == tuning.key_of(p, "h100")


# --- files ---------------------------------------------------------------------------------------------


def test_what_is_stored_is_read_again(table: Path, device: Device) -> None:
    first = Entry(Measured("x", 4, 12.5), Measured("y", 2, 13.0), Measured("z", 1, 14.0), "s", "2026-01-01")
    tuning.store(table, device, ("key", 16), first)
    tuning.store(table, device, ("key", 8), replace(first, runner_up=None))
    tuning.store(table, device, ("another", 8), first)
    tuning.store(table, device, ("key", 16), replace(first, sources="t"))
    assert tuning.read(table, device) == {
        "another": {8: first},
        "key": {8: replace(first, runner_up=None), 16: replace(first, sources="t")},
    }
    assert json.loads(table.read_text())["device"]["name"] == device.name
    assert not [p for p in table.parent.iterdir() if p.suffix == ".tmp"]


def test_many_writers(table: Path, device: Device) -> None:
    entry = Entry(Measured("x", 4, 12.5), None, None, "s")
    threads = [
        threading.Thread(target=tuning.store, args=(table, device, (f"key {i % 3}", i), entry))
        for i in range(12)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sum(map(len, tuning.read(table, device).values())) == 12


def test_a_table_of_another_device_is_moved_aside(table: Path, device: Device) -> None:
    entry = Entry(Measured("x", 4, 12.5), None, None, "s")
    tuning.store(table, replace(device, compute_units=7), ("key", 1), entry)
    with pytest.warns(notices.PortaGemmWarning, match="'compute_units': 7"):
        tuning.store(table, device, ("key", 2), entry)
    assert list(tuning.read(table, device)["key"]) == [2]
    assert table.with_suffix(".json.old").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"schema": 99}', '{"schema": 1, "device": {}, "entries": {}}', "\x00"],
)
def test_a_damaged_table_is_ignored_with_a_warning(
    table: Path, device: Device, h100: ArchProfile, text: str
) -> None:
    table.write_text(text)
    with pytest.warns(notices.PortaGemmWarning, match=r"table\.json is ignored"):
        plan = planner.plan(problem(), h100, device)
    assert plan == planner.plan(problem(), h100, device, use_tables=False)


def test_a_damaged_entry_makes_no_table(table: Path, device: Device) -> None:
    put(table, device, problem(), Entry(Measured("x", 4, 1.0), None, None, "s"))
    table.write_text(table.read_text().replace('["x", 4, 1.0]', '["x"]'))
    with pytest.raises(ValueError, match="no tuning table"):
        tuning.read(table, device)


def test_committed_tables_are_tables() -> None:
    """Each is of the device its name says, names tiles of its profile, and its times are times."""
    for path in tuning.builtin_folder().glob("tuned-*.json"):
        facts = json.loads(path.read_text())["device"]
        device = Device("cuda", 0, facts["name"], facts["arch"], facts["compute_units"])
        assert tuning.builtin_path(device) == path
        for key, by_rows in tuning.read(path, device).items():
            profile = profiles.builtin()[key.split(" ")[0]]
            assert {e.best.tile.partition("/")[0] for e in by_rows.values()} <= set(profile.schedules), key
            assert all(e.best.us > 0 and e.sources for e in by_rows.values()), key


# --- planning ------------------------------------------------------------------------------------------


def test_the_plan_is_the_measured_one(table: Path, device: Device, h100: ArchProfile) -> None:
    p = problem()
    chosen = other_plan(p, h100, device)
    model = planner.plan(p, h100, device, use_tables=False)
    entry = replace(
        entry_for(chosen, us=541.2), heuristic=Measured(planner.name_of(model), model.raster, 560.1)
    )
    put(table, device, p, entry)
    plan = planner.plan(p, h100, device)
    assert plan == replace(chosen, raster=3)
    text = plan.reasons[-1]
    assert "measured 541.2 us" in text and "the model's choice 560.1 us" in text and str(table) in text
    assert f"{model.cost:.1f} us expected, limit: {model.limit}" in plan.reasons[-2]
    assert planner.arguments(p, plan) != planner.arguments(p, chosen), "the raster reaches the kernel"
    assert planner.plan(p, h100, device, use_tables=False) == model


def test_off_leaves_tables_out(
    table: Path, device: Device, h100: ArchProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = problem()
    put(table, device, p, entry_for(other_plan(p, h100, device)))
    monkeypatch.setenv(tuning.VARIABLE, "off")
    assert planner.plan(p, h100, device) == planner.plan(p, h100, device, use_tables=False)


def test_an_entry_serves_other_epilogues_but_no_other_profile(
    table: Path, device: Device, h100: ArchProfile
) -> None:
    p = problem()
    chosen = other_plan(p, h100, device)
    put(table, device, p, entry_for(chosen))
    biased = replace(p, bias=replace(p.d, strides=(0, 1)), activation="gelu")
    assert planner.name_of(planner.plan(biased, h100, device)) == planner.name_of(chosen)
    a100 = profiles.builtin()["a100"]
    assert planner.plan(p, a100, device) == planner.plan(p, a100, device, use_tables=False)


def test_entries_of_other_sources_are_ignored_and_the_log_says_so(
    table: Path, device: Device, h100: ArchProfile, caplog: pytest.LogCaptureFixture
) -> None:
    p = problem()
    put(table, device, p, entry_for(other_plan(p, h100, device), sources="of yesterday"))
    with caplog.at_level(logging.INFO, logger="portagemm"):
        for _ in range(3):
            assert planner.plan(p, h100, device) == planner.plan(p, h100, device, use_tables=False)
    assert len(caplog.records) == 1 and "1 entries are of other kernel sources" in caplog.text


def test_a_tile_that_is_no_candidate_is_ignored(table: Path, device: Device, h100: ArchProfile) -> None:
    p = problem()
    put(table, device, p, Entry(Measured("warp/x", 1, 1.0), None, None, tuning.sources_digest("cuda")))
    assert planner.plan(p, h100, device) == planner.plan(p, h100, device, use_tables=False)


def test_fewer_rows_take_the_next_entry_if_it_has_as_many_tiles(
    table: Path, device: Device, h100: ArchProfile
) -> None:
    p = problem(m=4096)
    chosen = next(
        c
        for c in planner.candidates(p, h100, device)
        if c.kernel.tile.block[0] * c.kernel.tile.cluster == 256 and not c.swap
    )
    put(table, device, p, entry_for(chosen))
    served = [
        m
        for m in (1, 2048, 3840, 3841, 4000, 4096, 4097)
        if planner.plan(problem(m=m), h100, device).reasons[-1].startswith("tuned")
    ]
    assert served == [3841, 4000, 4096]


def test_the_very_shape_goes_first_and_the_named_table_before_the_users(
    table: Path, device: Device, h100: ArchProfile
) -> None:
    p = problem(m=4000)
    chosen = other_plan(p, h100, device)
    put(tuning.user_path(device), device, p, entry_for(chosen, raster=5))
    put(table, device, problem(m=4096), entry_for(chosen, raster=6))
    assert planner.plan(p, h100, device).raster == 5
    put(table, device, p, entry_for(chosen, raster=7))
    assert planner.plan(p, h100, device).raster == 7


def test_a_folder_holds_tables_by_the_name_of_the_device(
    table: Path, device: Device, h100: ArchProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = problem()
    put(table.parent / "tuned-nvidia-test-9000.json", device, p, entry_for(other_plan(p, h100, device)))
    monkeypatch.setenv(tuning.VARIABLE, str(table.parent))
    assert planner.plan(p, h100, device).raster == 3


def test_batch_invariance_is_not_tuned_away(table: Path, device: Device, h100: ArchProfile) -> None:
    p = replace(problem(m=4096), batch_invariant=True)
    before = planner.plan(p, h100, device)
    put(table, device, p, entry_for(other_plan(p, h100, device)))
    assert planner.plan(p, h100, device) == before


def test_comments_do_not_make_entries_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tmp_path / "x.hpp"
    monkeypatch.setattr(tuning, "shared_include_dir", lambda: tmp_path)
    digests = []
    for text in ("int x;  // one", "int x; /* two\n three */\n\n", "int y;"):
        header.write_text(text)
        tuning.reset()
        digests.append(tuning.sources_digest("cuda"))
    tuning.reset()
    assert digests[0] == digests[1] != digests[2]
