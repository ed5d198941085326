"""Fault G40, as far as imports go: importing the layer and listing devices open nothing on a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

import portagemm.hal as hal

pytestmark = pytest.mark.quick

HEAVY = {"torch", "numpy", "cuda", "hip", "triton", "jsonschema", "filelock", "platformdirs", "rich"}


def run(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_loads_nothing_foreign_and_none_of_its_modules() -> None:
    loaded = run(
        "import sys; before = set(sys.modules); import portagemm.hal; "
        "print(*sorted(set(sys.modules) - before))"
    ).split()
    assert not {name.split(".")[0] for name in loaded} & {*HEAVY, "yaml"}
    assert not [name for name in loaded if name.startswith(("portagemm.hal.", "portagemm.backends"))]


def test_selecting_a_profile_loads_no_torch_and_no_backend() -> None:
    loaded = run(
        "import sys\n"
        "from portagemm.hal import Device, KernelCache, for_device\n"
        "for_device(Device('cuda', 0, 'x', 'sm_90', 132)); KernelCache('/nowhere')\n"
        "print(*sys.modules)"
    ).split()
    assert not {name.split(".")[0] for name in loaded} & HEAVY
    assert not [name for name in loaded if name.startswith("portagemm.backends")]


def test_listing_devices_leaves_a_fork_safe() -> None:
    """Listing opens no GPU node: no descriptor and no mapping of one; a forked child can list too."""
    output = run(
        "import os, pathlib\n"
        "from portagemm.hal import inventory\n"
        "inventory()\n"
        "held = []\n"
        "for fd in pathlib.Path('/proc/self/fd').iterdir():\n"
        "    try: held.append(os.readlink(fd))\n"
        "    except OSError: pass\n"
        "bad = [x for x in held if x.startswith(('/dev/nvidia', '/dev/kfd', '/dev/dri', '/dev/dxg'))]\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    inventory(); os._exit(0)\n"
        "print(bad, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert output == "[] 0"


def test_every_public_name_is_there() -> None:
    for name in hal.__all__:
        assert getattr(hal, name) is not None
    assert set(hal.__all__) <= set(dir(hal))
    assert sorted(hal._HOME) == sorted(hal.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'gemm'"):
        hal.gemm  # noqa: B018
