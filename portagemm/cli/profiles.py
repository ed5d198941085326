"""``portagemm profiles``: the arch profiles, which one each device of this machine gets and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from portagemm.hal.profile import ArchProfile


@click.command("profiles")
@click.option("--show", "name", metavar="NAME", help="Print the facts of one profile.")
@click.option(
    "--validate",
    "files",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Check a profile file against the schema; may be repeated. Exit code 1 if one does not fit.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(name: str | None, files: tuple[Path, ...], as_json: bool) -> None:
    """Show the arch profiles, and which one this machine's devices get and why.

    PORTAGEMM_PROFILES adds profile files or folders; PORTAGEMM_PROFILE forces one by name.
    """
    from portagemm.hal import profile as profiles

    if files:
        for file in files:
            loaded = profiles.load(file)
            click.echo(f"{file}: ok: profile {loaded.name}, {loaded.backend}:{loaded.arch}")
    elif name is not None:
        chosen = profiles.get(name)
        click.echo(_as_json(chosen) if as_json else _as_text(chosen))
    elif as_json:
        _list_json()
    else:
        _list_text()


def _selections() -> list[tuple[str, str | None, str]]:
    """For each device of this machine: its description, the name of its profile or None, and the reason."""
    from portagemm.hal.devices import all_devices, report

    found: list[tuple[str, str | None, str]] = []
    for device in all_devices():
        about = report(device)
        selection = about.selection
        found.append(
            (
                f"{device.torch_device} {device.name}",
                selection.profile.name if selection else None,
                selection.reason if selection else about.problem,
            )
        )
    return found


def _list_text() -> None:
    from rich.console import Console
    from rich.table import Table

    from portagemm.hal import profile as profiles

    selections = _selections()
    users: dict[str, list[str]] = {}
    for label, profile_name, _ in selections:
        if profile_name is not None:
            users.setdefault(profile_name, []).append(label.split(" ")[0])
    builtin = profiles.builtin()

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("profile", "target", "wave", "schedules", "dtypes", "from", "used by"):
        table.add_column(column, overflow="fold")
    for profile_name, profile in profiles.all_profiles().items():
        table.add_row(
            profile_name,
            f"{profile.backend}:{profile.arch}",
            str(profile.wave_size),
            "\n".join(profile.schedules),
            " ".join(profile.native),
            "built in" if builtin.get(profile_name) is profile else profile.path,
            ", ".join(users.get(profile_name, ())),
        )
    console = Console(highlight=False)
    console.print(table)
    console.print()
    for label, profile_name, reason in selections:
        console.print(f"{label}: {profile_name or 'no profile'}", markup=False, style="bold", soft_wrap=True)
        console.print(f"  {reason}", markup=False, soft_wrap=True)


def _list_json() -> None:
    import json

    from portagemm.hal import profile as profiles

    click.echo(
        json.dumps(
            {
                "profiles": [
                    {
                        "name": p.name,
                        "backend": p.backend,
                        "arch": p.arch,
                        "wave_size": p.wave_size,
                        "schedules": list(p.schedules),
                        "native": list(p.native),
                        "path": p.path,
                    }
                    for p in profiles.all_profiles().values()
                ],
                "devices": [
                    {"device": label, "profile": profile_name, "reason": reason}
                    for label, profile_name, reason in _selections()
                ],
            },
            indent=2,
        )
    )


def _as_json(profile: ArchProfile) -> str:
    import dataclasses
    import json

    fields = {f.name: getattr(profile, f.name) for f in dataclasses.fields(profile)}
    return json.dumps(fields, indent=2, default=_plain)


def _plain(value: object) -> object:
    import dataclasses
    from collections.abc import Mapping

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def _as_text(profile: ArchProfile) -> str:
    """All facts of a profile, a line each, sources included."""
    limits = profile.limits
    lines = [
        f"{profile.name}: {profile.vendor}, {profile.backend}:{profile.arch}, waves of {profile.wave_size}",
        f"  file       {profile.path}",
        f"  source     {profile.source}",
        f"  matches    {', '.join(profile.matches)}",
        f"  block      {limits.threads_per_block} threads, {limits.shared_bytes_per_block} bytes shared",
        f"  limits     {limits.registers_per_thread} registers a thread, clusters of {limits.cluster} blocks",
        f"  scopes     {', '.join(profile.scopes)}",
        "; ".join(
            [
                f"  dtypes     {', '.join(profile.native)}",
                *(f"{d}: {how}" for d, how in profile.emulated.items()),
            ]
        ),
        "  atoms",
    ]
    for atom in profile.atoms.values():
        m, n, k = atom.shape
        lines.append(
            f"    {atom.name:<18} m{m}n{n}k{k}, {atom.lanes} lanes, {' '.join(atom.a)} -> {atom.accumulate}:"
            f" {atom.instruction}"
        )
    lines.append("  copies")
    for copy in profile.copies.values():
        lines.append(
            f"    {copy.name:<18} {'asynchronous' if copy.asynchronous else 'synchronous'},"
            f" {'/'.join(map(str, copy.bytes))} bytes: {copy.instruction}"
        )
    lines.append("  schedules, in order of preference, and their tiles")
    for schedule in profile.schedules:
        lines.append(f"    {schedule}")
        for tile in profile.tiles.get(schedule, ()):
            block, waves = "x".join(map(str, tile.block)), "x".join(map(str, tile.waves))
            cluster = f", clusters of {tile.cluster}" if tile.cluster > 1 else ""
            lines.append(f"      {tile.atom:<16} {block}, waves {waves}, {tile.stages} stages{cluster}")
    for dtype, route in profile.decompression.items():
        lines.append(f"  {dtype} is decompressed to {' or '.join(route.to)}: {route.route}")
    for quirk in profile.quirks:
        lines.append(f"  mind {quirk.id}: {quirk.text}")
    for board in profile.boards:
        rates = ", ".join(f"{dtype} {rate / 1e12:.0f} TFLOP/s" for dtype, rate in board.peak_flops.items())
        lines.append(
            f"  board {board.name}: {board.compute_units} units, {board.l2_bytes / 2**20:.0f} MB L2,"
            f" {board.memory_bandwidth / 1e12:.2f} TB/s" + (f", {rates}" if rates else "")
        )
    return "\n".join(lines)
