"""The same route under hip-python 6: other signatures, another search for libraries, other handles."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .conftest import Child, Folder


@pytest.fixture(scope="module")
def old() -> str:
    """Folder with a hip-python from before release 10, which test.sh puts beside the environment's own."""
    folder = Path(os.environ.get("PORTAGEMM_OLD_HIP_PYTHON", Path(sys.prefix) / "hip-python-6"))
    if not (folder / "hip").is_dir():
        pytest.skip(f"no hip-python before release 10 in {folder} (pip install --target, or ./test.sh)")
    return str(folder)


ROUTE = """
import hip.hip
machine = Machine(model.execute)
card = machine.hip()
machine.streams[0] = int(binding.check("create", card.hipStreamCreate()))
a, b = torch.randn(64, 96).half(), torch.randn(96, 64).half()
c = pg.matmul(a, b, fallback="error")
worst = float(((c.double() - a.double() @ b.double()).abs() / (1 + c.double().abs())).max())
devices = [[d.arch, d.compute_units, list(d.notes)] for d in pg.devices() if d.backend == "rocm"]
arrived = machine.launches[-1].stream == machine.streams[0]
print(json.dumps([worst, machine.faults, devices, arrived, hip.hip.__file__]))
"""


def test_route(child: Child, rocm: Folder, old: str, tmp_path: Path) -> None:
    (worst, faults, devices, arrived, binding), lines = child(
        ROUTE,
        PYTHONPATH=old,
        LD_LIBRARY_PATH=str(rocm() / "lib"),
        PORTAGEMM_CACHE_DIR=str(tmp_path / "kernels"),
    )
    assert binding.startswith(old)
    assert worst <= 2.0**-11 and faults == []
    assert devices == [["gfx90a", 110, ["sramecc+:xnack-"]]] * 2
    assert arrived
    assert sum(line.startswith("hiprtcCompileProgram") for line in lines) == 1
    assert any(line.startswith("launch pg_gfx90a_fp16") for line in lines)


REFUSED = """
machine = Machine(model.execute)
a = torch.ones(64, 64).half()
print(json.dumps(error(lambda: pg.matmul(a, a, fallback="error"))))
"""


def test_library_outside_the_loaders_path(child: Child, old: str) -> None:
    """These releases do not look at ROCM_PATH; the advice is the one that helps."""
    message, _ = child(REFUSED, PYTHONPATH=old)
    assert "hip-python found no libamdhip64.so" in message and "LD_LIBRARY_PATH" in message


def test_failed_launch(child: Child, rocm: Folder, old: str) -> None:
    message, _ = child(
        REFUSED,
        PYTHONPATH=old,
        LD_LIBRARY_PATH=str(rocm() / "lib"),
        FAKE_HIP_FAIL="hipModuleLaunchKernel:719",
    )
    assert message.startswith("LaunchError: kernel pg_gfx90a") and "hipErrorLaunchFailure" in message
