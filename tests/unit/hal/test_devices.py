"""The inventory: every backend reports, whatever state it is in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from portagemm.hal import devices, registry
from portagemm.hal.device import Device
from portagemm.hal.environment import Environment

pytestmark = pytest.mark.quick


class FakeCompiler:
    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason

    def unavailable_reason(self) -> str | None:
        return self.reason

    def identity(self) -> str:
        if self.reason == "raises":
            raise OSError("gone")
        return "fake 1.0"


class FakeBackend:
    def __init__(self, *found: Device, reason: str | None = None, compilers: tuple[object, ...] = ()) -> None:
        self.found, self.reason, self.made = found, reason, compilers

    def unavailable_reason(self) -> str | None:
        return self.reason

    def devices(self) -> tuple[Device, ...]:
        return self.found

    def compilers(self) -> tuple[object, ...]:
        return self.made


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Backends by name in place of the real ones; an exception stands for one that cannot be imported."""
    found: dict[str, object] = {name: FakeBackend() for name in registry.NAMES}

    def get(name: str) -> object:
        if isinstance(found[name], Exception):
            raise found[name]
        return found[name]

    monkeypatch.setattr(registry, "get", get)
    return found


def test_devices_with_profile_and_reason(backends: dict[str, object], device: Callable[..., Device]) -> None:
    h200 = device("sm_90", name="NVIDIA H200", notes=("MIG 1g.18gb",))
    backends["cuda"] = FakeBackend(h200, compilers=(FakeCompiler(), FakeCompiler("no library")))
    backends["rocm"] = FakeBackend(reason="no ROCm")
    backends["cpu"] = FakeBackend(device("native"))
    found = devices.inventory()
    assert [b.name for b in found.backends] == ["cuda", "rocm", "cpu"]
    assert [r.selection.profile.name for r in found.devices if r.selection] == ["h100", "cpu"]
    assert found.devices[0].board is not None and found.devices[0].board.name == "H200"
    assert found.backends[0].compilers == {"fake 1.0": None, "FakeCompiler": "no library"}
    assert found.backends[1].unavailable == "no ROCm"
    assert isinstance(found.environment, Environment) and "MIG 1g.18gb" in found.environment.mig
    assert devices.all_devices() == (h200, device("native"))


def test_device_no_profile_fits_is_reported(
    backends: dict[str, object], device: Callable[..., Device]
) -> None:
    backends["rocm"] = FakeBackend(device("gfx908", name="MI100"))
    (report,) = devices.inventory().devices
    assert report.selection is None and report.board is None
    assert "MI100" in report.problem and "mi250x" in report.problem


def test_forced_profile_that_fits_one_backend_only(
    backends: dict[str, object], device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    backends["cuda"], backends["cpu"] = FakeBackend(device("sm_90")), FakeBackend(device("native"))
    monkeypatch.setenv("PORTAGEMM_PROFILE", "a100")
    cuda, cpu = devices.inventory().devices
    assert cuda.selection is not None and cuda.selection.forced
    assert "a100" in cpu.problem


@pytest.mark.parametrize("error", [ImportError("no module"), OSError("bad library"), RuntimeError("x")])
def test_broken_backend_is_a_reason(
    backends: dict[str, object], device: Callable[..., Device], error: Exception
) -> None:
    backends["cuda"], backends["cpu"] = error, FakeBackend(device("native"))
    found = devices.inventory()
    assert str(error) in (found.backends[0].unavailable or "")
    assert len(found.devices) == 1 == len(devices.all_devices())


def test_compiler_that_fails_to_name_itself(backends: dict[str, object]) -> None:
    backends["cpu"] = FakeBackend(compilers=(FakeCompiler("raises"),))
    assert list(devices.inventory().backends[2].compilers) == ["FakeCompiler"]


def test_this_machine_has_its_cpu() -> None:
    found = devices.inventory()
    assert [r.device.backend for r in found.devices if r.device.backend == "cpu"] == ["cpu"]
    assert all(r.selection or r.problem for r in found.devices)
