"""``portagemm devices``: what kernels can run on here, and for each backend that cannot be used, why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from portagemm.hal.device import Device
    from portagemm.hal.registry import Backend


@click.command("devices")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(as_json: bool) -> None:
    """Show devices with their profiles, the environment, and each backend's compilers.

    For a backend or compiler that cannot be used, the reason is shown.
    """
    facts = collect()
    if as_json:
        import json

        click.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)


def collect() -> dict[str, Any]:
    """All that the command shows, as plain data. Never raises for lack of a library, driver or device."""
    from portagemm.hal import environment, registry
    from portagemm.hal.cache import default_cache

    backends = {name: registry.get(name) for name in registry.NAMES}
    devices = [device for backend in backends.values() for device in backend.devices()]
    folder = default_cache().info().directory
    here = environment.probe(
        cache_dir=str(folder) if folder else None, driver_notes=[note for d in devices for note in d.notes]
    )
    return {
        "environment": {"kind": here.kind, "lines": here.describe()},
        "devices": [_device(device) for device in devices],
        "backends": {name: _backend(backend) for name, backend in backends.items()},
    }


def _device(device: Device) -> dict[str, Any]:
    """A device with the profile it gets."""
    from portagemm.hal.errors import ProfileError
    from portagemm.hal.profile import for_device

    facts = {**asdict(device), "torch_device": device.torch_device}
    try:
        selection = for_device(device)
    except ProfileError as error:
        return {**facts, "profile": None, "reason": str(error)}
    return {**facts, "profile": selection.profile.name, "reason": selection.reason}


def _backend(backend: Backend) -> dict[str, Any]:
    """Availability of a backend and of its compilers; None as a reason means that it can be used."""
    compilers = []
    for compiler in backend.compilers():
        reason = compiler.unavailable_reason()
        compilers.append(
            {
                "name": compiler.identity() if reason is None else type(compiler).__name__,
                "unavailable": reason,
            }
        )
    return {"unavailable": backend.unavailable_reason(), "compilers": compilers}


def _print(facts: dict[str, Any]) -> None:
    for number, line in enumerate(facts["environment"]["lines"]):
        click.echo(("" if number == 0 else "  ") + line)
    for device in facts["devices"]:
        click.echo()
        click.secho(f"{device['torch_device']}: {device['name']}", bold=True)
        click.echo(f"  {', '.join(_sizes(device))}")
        for note in device["notes"]:
            click.echo(f"  {note}")
        click.echo(f"  profile {device['profile'] or 'none'}: {device['reason']}")
    click.echo()
    for name, backend in facts["backends"].items():
        click.secho(f"backend {name}: {backend['unavailable'] or 'usable'}", bold=True)
        for compiler in backend["compilers"]:
            click.echo(f"  compiler {compiler['name']}: {compiler['unavailable'] or 'usable'}")


def _sizes(device: dict[str, Any]) -> list[str]:
    """The known figures of a device; an unknown one is 0 and left out."""
    found = [f"{device['backend']}:{device['arch']}", f"{device['compute_units']} units"]
    if device["memory_bytes"]:
        found.append(f"{device['memory_bytes'] / 2**30:.1f} GiB")
    if device["memory_bandwidth"]:
        found.append(f"{device['memory_bandwidth'] / 1e12:.2f} TB/s")
    if device["l2_bytes"]:
        found.append(f"{device['l2_bytes'] / 2**20:.0f} MiB last-level cache")
    if device["shared_bytes_per_block"]:
        found.append(f"{device['shared_bytes_per_block'] / 1024:.0f} KiB shared memory a block")
    if device["driver_version"]:
        found.append(f"driver {device['driver_version']}")
    return found
