"""``portagemm devices``: what kernels can run on here, and for each backend that cannot be used, why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from portagemm.hal.device import Device
    from portagemm.hal.devices import DeviceReport, Inventory


@click.command("devices")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(as_json: bool) -> None:
    """Show devices with their profiles, the environment, and each backend's compilers.

    For a backend or compiler that cannot be used, the reason is shown.
    """
    from portagemm.hal.cache import default_cache
    from portagemm.hal.devices import inventory

    folder = default_cache().info().directory
    found = inventory(cache_dir=str(folder) if folder else None)
    if as_json:
        import json

        click.echo(json.dumps(_plain(found), indent=2))
    else:
        _print(found)


def _plain(found: Inventory) -> dict[str, Any]:
    """The inventory as JSON's types. A reason of null means that the thing can be used."""
    return {
        "environment": {"kind": found.environment.kind, "lines": found.environment.describe()},
        "devices": [_plain_device(report) for report in found.devices],
        "backends": {
            backend.name: {
                "unavailable": backend.unavailable,
                "compilers": dict(backend.compilers),
                "notes": list(backend.notes),
            }
            for backend in found.backends
        },
    }


def _plain_device(report: DeviceReport) -> dict[str, Any]:
    from dataclasses import asdict

    selection = report.selection
    return {
        **asdict(report.device),
        "torch_device": report.device.torch_device,
        "profile": selection.profile.name if selection else None,
        "reason": selection.reason if selection else report.problem,
    }


def _print(found: Inventory) -> None:
    first, *rest = found.environment.describe()
    click.echo(first)
    for line in rest:
        click.echo(f"  {line}")
    for report in found.devices:
        device, selection = report.device, report.selection
        click.echo()
        click.secho(f"{device.torch_device}: {device.name}", bold=True)
        click.echo(f"  {', '.join(_sizes(device))}")
        for note in device.notes:
            click.echo(f"  {note}")
        if selection is None:
            click.echo(f"  no profile: {report.problem}")
        else:
            click.echo(f"  profile {selection.profile.name}: {selection.reason}")
    click.echo()
    for backend in found.backends:
        click.secho(f"backend {backend.name}: {backend.unavailable or 'usable'}", bold=True)
        for note in backend.notes:
            click.echo(f"  {note}")
        for name, reason in backend.compilers.items():
            click.echo(f"  compiler {name}: {reason or 'usable'}")
    if any(backend.unavailable for backend in found.backends):
        click.echo("\nportagemm doctor says what keeps a GPU of this machine from being used, and what to do")


def _sizes(device: Device) -> list[str]:
    """The known figures of a device; an unknown one is 0 and left out."""
    found = [f"{device.backend}:{device.arch}", f"{device.compute_units} units"]
    if device.memory_bytes:
        found.append(f"{device.memory_bytes / 2**30:.1f} GiB")
    if device.memory_bandwidth:
        found.append(f"{device.memory_bandwidth / 1e12:.2f} TB/s")
    if device.l2_bytes:
        found.append(f"{device.l2_bytes / 2**20:.0f} MiB last-level cache")
    if device.shared_bytes_per_block and device.backend != "cpu":
        found.append(f"{device.shared_bytes_per_block / 1024:.0f} KiB shared memory a block")
    if device.driver_version:
        found.append(f"driver {device.driver_version}")
    return found
