"""Every device of every backend, with the profile it gets and why. Opens no context on any GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from portagemm.hal import environment, registry
from portagemm.hal.board import Board, board_for
from portagemm.hal.device import Device
from portagemm.hal.errors import PortaGemmError, ProfileError
from portagemm.hal.profile import Selection, for_device


@dataclass(frozen=True)
class DeviceReport:
    """One device and how the package would use it.

    Attributes:
        device: what the driver says.
        selection: profile, target and reason; None where no profile fits, and `problem` says why.
        board: figures for planning; None without a profile.
    """

    device: Device
    selection: Selection | None
    board: Board | None
    problem: str = ""


@dataclass(frozen=True)
class BackendReport:
    """One backend: why it cannot run here (None if it can), its compilers, its devices.

    compilers: identity -> reason why it cannot be used, or None.
    notes: what the environment does to the list of devices (masks, what they hide).
    """

    name: str
    unavailable: str | None
    devices: tuple[DeviceReport, ...] = ()
    compilers: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """What this machine has, as `portagemm devices` shows it."""

    environment: environment.Environment
    backends: tuple[BackendReport, ...]

    @property
    def devices(self) -> tuple[DeviceReport, ...]:
        """All devices, those of the preferred backend first."""
        return tuple(report for backend in self.backends for report in backend.devices)


def all_devices() -> tuple[Device, ...]:
    """Every device of every backend, in the registry's order. Never raises."""
    return tuple(device for name in registry.NAMES for device in _devices(name)[0])


def report(device: Device) -> DeviceReport:
    """Profile and board of one device. Never raises: what goes wrong is the report's `problem`."""
    try:
        selection = for_device(device)
    except ProfileError as error:
        return DeviceReport(device, None, None, str(error))
    return DeviceReport(device, selection, board_for(device, selection.profile))


def inventory(cache_dir: str | None = None) -> Inventory:
    """Look at backends, devices and environment. Never raises; safe before a fork.

    Args:
        cache_dir: a folder whose file system the environment should name (the kernel cache's).
    """
    backends = tuple(_backend(name) for name in registry.NAMES)
    notes = [note for b in backends for d in b.devices for note in d.device.notes]
    return Inventory(environment.probe(cache_dir=cache_dir, driver_notes=notes), backends)


def _backend(name: str) -> BackendReport:
    devices, fault = _devices(name)
    reports = tuple(report(device) for device in devices)
    if fault is not None:
        return BackendReport(name, fault, reports)
    backend = registry.get(name)
    compilers: dict[str, str | None] = {}
    for compiler in backend.compilers():
        try:
            reason = compiler.unavailable_reason()
            identity = type(compiler).__name__ if reason else compiler.identity()
        except (PortaGemmError, OSError, RuntimeError) as error:
            reason, identity = str(error), type(compiler).__name__
        compilers[identity] = reason
    notes: Callable[[], tuple[str, ...]] | None = getattr(backend, "notes", None)  # not every backend has any
    return BackendReport(name, backend.unavailable_reason(), reports, compilers, notes() if notes else ())


def _devices(name: str) -> tuple[tuple[Device, ...], str | None]:
    """A backend's devices, and why they cannot be listed (a broken installation), or None."""
    try:
        return tuple(registry.get(name).devices()), None
    except Exception as error:  # a report must not fail where what it reports on does
        return (), f"{type(error).__name__}: {error}"
