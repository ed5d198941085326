"""``portagemm cache info|clear``: the compiled kernels of this user."""

from __future__ import annotations

from dataclasses import asdict

import click


@click.group("cache")
def command() -> None:
    """Show or clear the kernel cache.

    PORTAGEMM_CACHE_DIR chooses its folder, PORTAGEMM_CACHE_LIMIT its size, PORTAGEMM_KERNEL_PATH adds packs.
    """


@command.command("info")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def info(as_json: bool) -> None:
    """Where the cache is, what it holds, and the kernel packs in use."""
    from portagemm.hal.cache import default_cache

    facts = default_cache().info()
    if as_json:
        import json

        plain = {**asdict(facts), "targets": dict(facts.targets)}
        click.echo(json.dumps(plain, indent=2, default=str))
        return
    click.echo(f"folder   {facts.directory or 'none'} ({facts.reason})")
    if facts.directory is not None and not facts.writable:
        click.echo("         not writable: new kernels are kept in memory only")
    bound = f", at most {_size(facts.limit_bytes)}" if facts.limit_bytes else ""
    click.echo(f"kernels  {facts.entries}, {_size(facts.bytes)}{bound}")
    for target, count in facts.targets.items():
        click.echo(f"         {target}: {count}")
    for path, count, fault in facts.packs:
        click.echo(f"pack     {path}: {fault or f'{count} kernels'}")


@command.command("clear")
def clear() -> None:
    """Remove every compiled kernel from the cache folder. Packs stay."""
    from portagemm.hal.cache import default_cache

    cache = default_cache()
    count, size = cache.clear()
    click.echo(f"removed {count} kernels, {_size(size)}, from {cache.info().directory}")


def _size(count: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
