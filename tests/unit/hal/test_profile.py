"""Profiles: reading with clear faults, the user's files, and which profile a device gets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from portagemm.hal import profile
from portagemm.hal.device import Device
from portagemm.hal.errors import ProfileError

pytestmark = pytest.mark.quick

MakeDevice = Callable[..., Device]


@pytest.fixture
def user(tmp_path: Path) -> Callable[..., Path]:
    """Writes a profile file: the built-in `base` with `changes` (a function on its data) applied."""

    def write(changes: Callable[[dict], None], base: str = "a100", file: str = "user.yaml") -> Path:
        data = yaml.safe_load(Path(profile.builtin()[base].path).read_text())
        changes(data)
        path = tmp_path / file
        path.write_text(yaml.safe_dump(data))
        return path

    return write


def set_key(*keys: object, value: object) -> Callable[[dict], None]:
    def change(data: dict) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


# --- faults in files: each names file, key, value, allowed


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (set_key("wave_size", value=33), ["key wave_size", "given 33", "one of 1, 32, 64"]),
        (set_key("backend", value="metal"), ["key backend", "'metal'", "cuda, rocm, cpu"]),
        (set_key("arch", value="ampere"), ["key arch", "'ampere'", "sm_"]),
        (set_key("schema", value=9), ["key schema", "given 9", "allowed: 1"]),
        (lambda d: d.pop("limits"), ["key (top level)", "lacks limits"]),
        (set_key("limits", "warp", value=1), ["key limits", "given warp", "threads_per_block"]),
        (set_key("limits", "grid", value=0), ["key limits.grid", "given 0", "at least 1"]),
        (set_key("limits", "grid", value="big"), ["key limits.grid", "'big'", "type integer"]),
        (set_key("scopes", value=["wave", "universe"]), ["key scopes[1]", "'universe'", "cluster"]),
        (set_key("scopes", value=["wave", "wave"]), ["key scopes", "each item once"]),
        (set_key("atoms", value={}), ["key atoms", "at least 1 keys"]),
        (set_key("atoms", "fma", "shape", value=[1, 1]), ["key atoms.fma.shape", "at least 3 items"]),
        (set_key("tiles", "multistage", 0, "stages", value=99), ["tiles.multistage[0].stages", "at most 16"]),
        (set_key("tiles", "multistage", 0, "atom", value="mma_x"), ["[0].atom", "'mma_x'", "mma_16816"]),
        (
            set_key("tiles", "multistage", 0, "block", value=[100, 256, 32]),
            ["tiles.multistage[0].block", "m = 100", "multiples of 32"],
        ),
        (
            set_key("tiles", "multistage", 0, "waves", value=[8, 8]),
            ["tiles.multistage[0].waves", "[8, 8] (2048 threads)", "at most 1024"],
        ),
        (set_key("tiles", "multistage", 0, "cluster", value=2), ["[0].cluster", "given 2", "at most 1"]),
        (
            set_key("tiles", "gemv", 0, "block", value=[1, 16, 12]),
            ["tiles.gemv[0].block", "k = 12", "8 or 16"],
        ),
        (
            set_key("tiles", "gemv", 0, "block", value=[3, 12, 8]),
            ["[0].block", "3 x 12 outputs", "power of two"],
        ),
        (set_key("tiles", "gemv", 2, "waves", value=[2, 2]), ["tiles.gemv[2].waves", "[2, 2]", "[1, n]"]),
        (
            set_key("tiles", "skinny", 0, "block", value=[12, 16, 32]),
            ["tiles.skinny[0].block", "m = 12", "multiples of 8"],
        ),
        (
            set_key("tiles", "skinny", 0, "waves", value=[8, 2]),
            ["tiles.skinny[0].block", "n = 16", "multiples of 32", "2 waves along N"],
        ),
        (
            set_key("tiles", "skinny", 0, "waves", value=[64, 1]),
            ["tiles.skinny[0].waves", "(2048 threads)", "at most 1024"],
        ),
        (
            set_key("tiles", "skinny", 0, "cluster", value=2),
            ["tiles.skinny[0].cluster", "given 2", "1 with skinny"],
        ),
        (set_key("tiles", "gemv", 0, "split", value=2), ["tiles.gemv[0].cluster", "split, 2", "1 with gemv"]),
        (set_key("tiles", "skinny", 1, "atom", value="mma_x"), ["skinny[1].atom", "'mma_x'", "mma_16816"]),
        (lambda d: d["tiles"].pop("multistage"), ["key tiles", "multistage has none"]),
        (set_key("schedules", value=["single_buffer"]), ["key tiles.gemv", "not in schedules"]),
        (set_key("boards", 0, "memory_bandwidth", value="2e12"), ["memory_bandwidth", "'2e12'", "1.0e+12"]),
        (set_key("dtypes", "native", value=["fp17"]), ["key dtypes.native[0]", "'fp17'", "bf16"]),
    ],
)
def test_fault_names_file_key_value_allowed(
    user: Callable[..., Path], change: Callable[[dict], None], parts: list[str]
) -> None:
    path = user(change)
    with pytest.raises(ProfileError) as error:
        profile.load(path)
    for part in [str(path), *parts]:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [1, 2", "not valid YAML"),
        ("a: 1\na: 2\n", "key 'a' is given twice"),
        ("[1]: 2\n", "a key must be text"),
        ("- 1\n", "a mapping of keys"),
        ("", "a mapping of keys"),
        ("a: \x00", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
        (
            "extends: a1000\n",
            "given 'a1000'; allowed (built-in): a100, cpu, h100, mi250x, mi300x, mi355x, rtx4090, rx7900xtx",
        ),
    ],
)
def test_broken_file(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as error:
        profile.load(path)
    assert str(path) in str(error.value) and part in str(error.value)


def test_missing_file_and_undecodable_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read"):
        profile.load(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="cannot be read"):
        profile.load(tmp_path / "binary.yaml")


def test_many_faults_are_all_listed_up_to_a_bound(user: Callable[..., Path]) -> None:
    def change(data: dict) -> None:
        for tile in data["tiles"]["multistage"]:
            tile["stages"] = 0
            tile["waves"] = [0, 1]

    with pytest.raises(ProfileError, match=r"and \d+ more"):
        profile.load(user(change))


def test_unvalidated_load_of_a_broken_file_still_names_the_key(user: Callable[..., Path]) -> None:
    path = user(lambda data: data.pop("atoms"))
    with pytest.raises(ProfileError, match="lacks atoms"):
        profile.load(path, validate=False)


# --- which profiles there are


def test_unknown_name_lists_names() -> None:
    with pytest.raises(
        ProfileError,
        match="given 'b300'; allowed: a100, cpu, h100, mi250x, mi300x, mi355x, rtx4090, rx7900xtx",
    ):
        profile.get("b300")


def test_user_profile_overrides_same_name(
    user: Callable[..., Path], device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = user(
        lambda data: data.update(
            schedules=["single_buffer"],
            tiles={"single_buffer": [{"atom": "fma", "block": [32, 32, 8], "waves": [1, 1], "stages": 1}]},
        )
    )
    monkeypatch.setenv("PORTAGEMM_PROFILES", str(path))
    selection = profile.for_device(device("sm_80"))
    assert selection.profile.schedules == ("single_buffer",)
    assert str(path) in selection.reason
    assert set(profile.all_profiles()) == {
        "a100",
        "cpu",
        "h100",
        "mi250x",
        "mi300x",
        "mi355x",
        "rtx4090",
        "rx7900xtx",
    }
    assert profile.builtin()["a100"].schedules != ("single_buffer",)


def test_user_profile_of_another_name_goes_before_the_builtin(
    user: Callable[..., Path], device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTAGEMM_PROFILES", str(user(set_key("name", value="mine")).parent))
    assert profile.for_device(device("sm_80")).profile.name == "mine"


def test_first_listed_of_two_user_files_wins(
    user: Callable[..., Path], device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = user(set_key("name", value="first"), file="z.yaml")
    second = user(set_key("name", value="second"), file="a.yaml")
    monkeypatch.setenv("PORTAGEMM_PROFILES", os.pathsep.join([str(first), str(second)]))
    assert profile.for_device(device("sm_80")).profile.name == "first"


def test_user_profile_may_extend_a_builtin(
    tmp_path: Path, device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(
        "extends: h100\nname: small\nlimits: {shared_bytes_per_block: 65536}\n"
        "tiles:\n  warp_specialized:\n"
        "    - {atom: wgmma, block: [64, 64, 64], waves: [1, 1], stages: 4}\n"
    )
    monkeypatch.setenv("PORTAGEMM_PROFILES", str(path))
    mine, base = profile.get("small"), profile.get("h100")
    assert mine.limits.shared_bytes_per_block == 65536
    assert mine.limits.registers_per_thread == base.limits.registers_per_thread
    assert len(mine.tiles["warp_specialized"]) == 1
    assert mine.tiles["multistage"] == base.tiles["multistage"]


def test_missing_user_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTAGEMM_PROFILES", "/no/such/profiles")
    with pytest.raises(ProfileError, match="PORTAGEMM_PROFILES: given /no/such/profiles; allowed: existing"):
        profile.all_profiles()


# --- which profile a device gets


@pytest.mark.parametrize(
    ("arch", "name", "target"),
    [
        ("sm_80", "a100", "cuda:sm_80"),
        ("sm_89", "rtx4090", "cuda:sm_89"),
        ("sm_90", "h100", "cuda:sm_90a"),
        ("gfx90a", "mi250x", "rocm:gfx90a"),
        ("gfx942", "mi300x", "rocm:gfx942"),
        ("gfx950", "mi355x", "rocm:gfx950"),
        ("gfx1100", "rx7900xtx", "rocm:gfx1100"),
        ("native", "cpu", "cpu:native"),
    ],
)
def test_known_devices(device: MakeDevice, caught: list[str], arch: str, name: str, target: str) -> None:
    selection = profile.for_device(device(arch))
    assert selection.profile.name == name
    assert str(selection.target) == target
    assert selection.target.wave_size == selection.profile.wave_size
    assert not selection.prefer_vendor and not selection.warnings and not caught and not selection.forced


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("sm_86", "a100"),
        ("sm_87", "a100"),
        ("sm_100", "rtx4090"),
        ("sm_103", "rtx4090"),
        ("sm_120", "rtx4090"),
    ],
)
def test_unknown_nvidia_device_inherits_and_warns_once(
    device: MakeDevice, caught: list[str], arch: str, name: str
) -> None:
    card = device(arch, name="Card 5000", shared_bytes_per_block=101376, threads_per_block=1024)
    for _ in range(2):
        selection = profile.for_device(card)
    assert selection.profile.name == name
    assert selection.prefer_vendor
    assert selection.target.assembled_for == arch
    assert str(selection.target) == f"cuda:{selection.profile.arch}->{arch}"
    assert len(caught) == 1
    assert "Card 5000" in caught[0] and name in caught[0] and arch in caught[0]
    assert selection.profile.limits_for(card).shared_bytes_per_block == 101376


@pytest.mark.parametrize("arch", ["sm_75", "sm_70", "gfx908", "gfx1030", "unknown"])
def test_devices_no_profile_fits(device: MakeDevice, arch: str) -> None:
    backend = "cuda" if arch == "unknown" else ""
    with pytest.raises(ProfileError) as error:
        profile.for_device(device(arch, backend=backend))
    known = "mi250x (gfx90a)" if arch.startswith("gfx") else "a100 (sm_80)"
    assert arch in str(error.value) and known in str(error.value)


@pytest.mark.parametrize(
    ("forced", "arch", "assembled"),
    [
        ("h100", "sm_90", None),
        ("a100", "sm_90", "sm_90"),
        ("rtx4090", "sm_90", "sm_90"),
        ("a100", "sm_80", None),
        ("a100", "sm_120", "sm_120"),
        ("mi250x", "gfx90a", None),
        ("cpu", "native", None),
        ("a100,cpu", "native", None),
        (" cpu , a100", "sm_89", "sm_89"),
    ],
)
def test_forcing(
    device: MakeDevice,
    monkeypatch: pytest.MonkeyPatch,
    caught: list[str],
    forced: str,
    arch: str,
    assembled: str | None,
) -> None:
    monkeypatch.setenv("PORTAGEMM_PROFILE", forced)
    selection = profile.for_device(device(arch))
    assert selection.forced and not selection.prefer_vendor and not caught
    assert selection.profile.name in forced
    assert selection.target.assembled_for == assembled
    assert "PORTAGEMM_PROFILE" in selection.reason


@pytest.mark.parametrize(
    ("forced", "arch", "parts"),
    [
        ("h100", "sm_80", ["h100 (sm_90a)", "sm_90 only", "the device is sm_80", "sm_80): a100"]),
        ("h100", "sm_100", ["arch-specific", "the device is sm_100", "a100, rtx4090"]),
        ("rtx4090", "sm_80", ["sm_89 and newer", "the device is sm_80"]),
        ("mi250x", "sm_90", ["mi250x (gfx90a)", "backend is rocm, the device's cuda", "a100, h100, rtx4090"]),
        ("a100", "gfx90a", ["a100 (sm_80)", "backend is cuda, the device's rocm", "mi250x"]),
        ("mi250x", "gfx942", ["gfx90a only", "gfx942", "mi300x"]),
        ("a100", "native", ["a100 (sm_80)", "backend is cuda, the device's cpu", ": cpu"]),
        ("a1000", "sm_80", ["given 'a1000'", "a100, cpu, h100, mi250x, mi300x, mi355x, rtx4090, rx7900xtx"]),
        (" ,", "native", ["given ' ,'", "a100, cpu, h100, mi250x, mi300x, mi355x, rtx4090, rx7900xtx"]),
    ],
)
def test_forcing_what_cannot_run_names_both_and_allowed(
    device: MakeDevice, monkeypatch: pytest.MonkeyPatch, forced: str, arch: str, parts: list[str]
) -> None:
    monkeypatch.setenv("PORTAGEMM_PROFILE", forced)
    with pytest.raises(ProfileError) as error:
        profile.for_device(device(arch))
    for part in ["PORTAGEMM_PROFILE", *parts]:
        assert part in str(error.value)


def test_changed_variable_is_seen_without_reset(device: MakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    card = device("sm_90")
    assert profile.for_device(card).profile.name == "h100"
    monkeypatch.setenv("PORTAGEMM_PROFILE", "a100")
    assert profile.for_device(card).profile.name == "a100"


def test_limits_in_force_are_the_smaller(device: MakeDevice) -> None:
    h100 = profile.get("h100")
    assert h100.limits_for(device("sm_90", shared_bytes_per_block=1000)).shared_bytes_per_block == 1000
    assert h100.limits_for(device("sm_90", shared_bytes_per_block=10**9)).shared_bytes_per_block == 232448
    assert h100.limits_for(device("sm_90", shared_bytes_per_block=0)).shared_bytes_per_block == 232448
    assert h100.limits_for(device("sm_90", threads_per_block=512)).threads_per_block == 512


def test_selecting_reads_only_the_profile_taken(device: MakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    load = profile.load

    def watched(path: Path, **options: bool) -> profile.ArchProfile:
        read.append(Path(path).stem)
        return load(path, **options)

    monkeypatch.setattr(profile, "load", watched)
    profile.for_device(device("sm_90"))
    assert read == ["h100"]
    monkeypatch.setenv("PORTAGEMM_PROFILE", "rtx4090")
    profile.for_device(device("sm_90"))
    assert read == ["h100", "rtx4090"]


def test_selection_is_cached(device: MakeDevice) -> None:
    assert profile.for_device(device("sm_90")) is profile.for_device(device("sm_90"))
