"""The doctor and what strangers hand it: bundles, reports and logs that are wrong, endless or made to harm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from portagemm.doctor.host import Host
from portagemm.doctor.machine_file import MachineFileError, dump, parse
from portagemm.doctor.record import Recorder
from portagemm.doctor.replay import open_machine, unpack

pytestmark = pytest.mark.quick


def bundle(body: str) -> str:
    """A machine file of these sections."""
    return f"portagemm-machine 1\n{body}\n"


# -- a bundle stays in its folder ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "--- links\n/a -> {outside}\n/a/b/c -> /etc/passwd",
        "--- links\n/a/b/c -> /etc/passwd\n/a/b -> {outside}\n/a/b/d/e -> x\n/x -> {outside}\n/x/y -> z",
        "--- links\n/x -> {outside}\n/x/y -> z",
        "--- links\n/x -> .\n/x/y -> {outside}\n/x/y/z -> t",
    ],
)
def test_nothing_is_made_through_a_link(body: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    try:
        unpack(parse(bundle(body.format(outside=outside))), tmp_path / "m")
    except MachineFileError as error:
        assert "lies below a link" in str(error)
    assert list(outside.iterdir()) == []


def test_a_link_that_would_hold_another_is_refused(tmp_path: Path) -> None:
    machine = parse(bundle("--- links\n/x/y -> z"))
    (tmp_path / "m/root").mkdir(parents=True)
    (tmp_path / "m/root/x").symlink_to(tmp_path)
    with pytest.raises(MachineFileError, match="below a link"):
        unpack(machine, tmp_path / "m")
    assert not os.path.lexists(tmp_path / "y")


def test_links_below_links_are_recorded_where_they_lie(tmp_path: Path) -> None:
    """As in /sys/class, where a device is a link, and its driver is a link below it."""
    tree = tmp_path / "tree"
    (tree / "devices/card0").mkdir(parents=True)
    (tree / "drivers/amdgpu").mkdir(parents=True)
    (tree / "class").mkdir()
    (tree / "class/card0").symlink_to("../devices/card0")
    (tree / "devices/card0/driver").symlink_to("../../drivers/amdgpu")
    recorder = Recorder()
    host = Host(tree, {}, recorder=recorder)
    assert host.readlink("/class/card0/driver") == "../../drivers/amdgpu"
    assert recorder.machine.links == {
        "/class/card0": "../devices/card0",
        "/devices/card0/driver": "../../drivers/amdgpu",
    }
    again = open_machine(parse(dump(recorder.finish(host))), tmp_path / "again")
    assert again.readlink("/class/card0/driver") == "../../drivers/amdgpu"
