"""The ROCm backend end to end on a HIP library without hardware, under the unmodified hip-python.

hip-python opens its library once a process, so every test runs a child process of its own with a library made
for it: complete, without a symbol, without devices, or none at all.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ...fake_rocm import build  # noqa: TID252

pytestmark = pytest.mark.quick

PRELUDE = """
import json, sys
from pathlib import Path
from portagemm.backends.rocm import backend, hip as binding, kfd
from portagemm.hal.errors import BackendUnavailableError, LaunchError, PortaGemmError
from portagemm.hal.program import ArgumentBlock, LaunchConfig, ObjectCode
from portagemm.hal.target import Target

# No /sys of this machine: devices come from HIP.
kfd.TOPOLOGY = Path("/nonexistent")
CODE = ObjectCode(b"\\x7fELF code", Target("rocm", "gfx90a", 64), "pg_kernel", "clang")
BLOCK = ArgumentBlock(bytes(range(48)), (0, 16), (32, 36))

def prepare(config=None, code=CODE, block=BLOCK, device=0):
    return backend.BACKEND.driver().prepare(code, config or LaunchConfig(7, 256, shared_bytes=1024), block, device)

def error(call):
    try:
        call()
    except PortaGemmError as e:
        return type(e).__name__ + ": " + str(e)
    return "no error"
"""

Library = Callable[..., Path]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Builds a ROCm folder with lib/libamdhip64.so and lib/libhiprtc.so; extra flags choose a variant."""
    built: dict[tuple[str, ...], Path] = {}

    def folder(*flags: str) -> Path:
        if flags not in built:
            built[flags] = build.rocm(tmp_path_factory.mktemp("rocm"), *flags)
        return built[flags]

    return folder


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[Any, list[str]]]:
    """Runs a script after PRELUDE; it prints one JSON value. Returns that and what the library recorded."""
    log = tmp_path / "log"

    def runner(script: str, rocm: Path, **environ: str) -> tuple[Any, list[str]]:
        env = build.environment(rocm, log, **{"FAKE_HIP_IMAGES": "any", **environ})
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + script], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        lines = log.read_text().splitlines() if log.exists() else []
        return json.loads(done.stdout.splitlines()[-1]), lines

    return runner


# --- the four outcomes of a probe --------------------------------------------------------------------------

REASON = "print(json.dumps([backend.BACKEND.unavailable_reason(), len(backend.BACKEND.devices())]))"


def test_available(run: Any, library: Library) -> None:
    (reason, devices), _ = run(REASON, library())
    assert reason is None
    assert devices == 2


def test_no_library(run: Any, tmp_path: Path) -> None:
    (reason, devices), _ = run(REASON, tmp_path)
    assert "found no libamdhip64.so" in reason and "ROCM_PATH" in reason
    assert devices == 0


def test_missing_symbol(run: Any, library: Library) -> None:
    (reason, devices), _ = run(REASON, library("-DMISSING_SYMBOL"))
    assert "has no hipRuntimeGetVersion" in reason
    assert devices == 0


def test_no_device(run: Any, library: Library) -> None:
    (reason, devices), _ = run(REASON, library(), FAKE_HIP_DEVICES="0")
    assert "finds no device" in reason
    assert devices == 0


def test_driver_of_an_unavailable_backend(run: Any, tmp_path: Path) -> None:
    message, _ = run("print(json.dumps(error(backend.BACKEND.driver)))", tmp_path)
    assert message.startswith("BackendUnavailableError: backend rocm is not available: hip-python found no")


# --- devices -------------------------------------------------------------------------------------------------


def test_devices_from_hip(run: Any, library: Library) -> None:
    """Without KFD (WSL2) HIP is asked in a child process: this one made no HIP call that opens a device."""
    script = """
import os
d = backend.BACKEND.devices()[1]
print(json.dumps([d.index, d.name, d.arch, d.compute_units, d.shared_bytes_per_block, list(d.notes)]))
"""
    device, _ = run(script, library())
    assert device == [1, "AMD Instinct MI250X", "gfx90a", 110, 65536, ["sramecc+:xnack-"]]


def test_enumeration_leaves_the_process_alone(run: Any, library: Library, tmp_path: Path) -> None:
    """Devices from the topology: HIP is neither asked nor loaded, so a fork afterwards stays safe."""
    node = tmp_path / "topology" / "nodes" / "0"
    node.mkdir(parents=True)
    (node / "properties").write_text(
        "simd_count 440\nsimd_per_cu 4\ngfx_target_version 90010\nlds_size_in_kb 64\n"
    )
    script = f"""
kfd.TOPOLOGY = Path({str(node.parent.parent)!r})
found = [d.arch for d in backend.BACKEND.devices()]
print(json.dumps([found, "hip" in sys.modules, len(binding.loaded_libraries("libamdhip64.so"))]))
"""
    result, lines = run(script, library())
    assert result == [["gfx90a"], False, 0]
    assert lines == []


# --- launch --------------------------------------------------------------------------------------------------


def _arguments(line: str) -> bytes:
    return bytes.fromhex(line.split("arguments ")[1])


def test_everything_arrives(run: Any, library: Library) -> None:
    script = """
launch = prepare(LaunchConfig(1000, 256, shared_bytes=32768))
launch((0x1122334455667788, 16), (1.5, -2.0), 0xABCDE0)
launch((32, 48), (0.0, 0.25), 0)
print(json.dumps(None))
"""
    _, lines = run(script, library())
    first, second = (line for line in lines if line.startswith("launch"))
    assert "grid 1000 1 1 block 256 1 1 shared 32768 stream 0xabcde0 device 0" in first
    expected = bytearray(range(48))
    struct.pack_into("<Q", expected, 0, 0x1122334455667788)
    struct.pack_into("<Q", expected, 16, 16)
    struct.pack_into("<ff", expected, 32, 1.5, -2.0)
    assert _arguments(first) == bytes(expected)
    struct.pack_into("<Q", expected, 0, 32)
    struct.pack_into("<Q", expected, 16, 48)
    struct.pack_into("<ff", expected, 32, 0.0, 0.25)
    assert _arguments(second) == bytes(expected)
    assert "stream (nil)" in second


def test_other_device_and_back(run: Any, library: Library) -> None:
    """Loading and launching happen on the tensor's device; the caller's current device is restored."""
    script = """
hip = binding.runtime()
launch = prepare(device=1)
launch((1, 2), (1.0, 0.0), 0)
print(json.dumps(int(binding.check("hipGetDevice", hip.hipGetDevice()))))
"""
    current, lines = run(script, library())
    assert current == 0
    assert any(line.startswith("hipModuleLoadData device 1") for line in lines)
    assert any(line.startswith("launch") and " device 1 " in line for line in lines)
    assert lines[-1] == "hipSetDevice 0"


def test_one_load_a_code_object_and_device(run: Any, library: Library) -> None:
    script = """
import threading
threads = [threading.Thread(target=prepare, kwargs=dict(device=i % 2)) for i in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(json.dumps(None))
"""
    _, lines = run(script, library())
    assert sorted(line[:26] for line in lines if "LoadData" in line) == [
        "hipModuleLoadData device 0",
        "hipModuleLoadData device 1",
    ]


def test_a_code_objects_bytes_live_as_long_as_its_module(run: Any, library: Library) -> None:
    """HIP keeps the address it is given. (These bytes are so many that freed ones would leave the address space.)"""
    script = """
import gc
image = b"\\x7fELF" + b"x" * 50_000_000
launch = prepare(code=ObjectCode(image, Target("rocm", "gfx90a", 64), "pg_kernel", "clang"))
del image
gc.collect()
launch((1, 2), (1.0, 0.0), 0)
print(json.dumps(None))
"""
    _, lines = run(script, library())
    assert lines[-1].startswith("launch pg_kernel")


def test_module_load_allows_capture(run: Any, library: Library) -> None:
    """The thread's capture mode is relaxed round the load and put back."""
    _, lines = run("prepare(); print(json.dumps(None))", library())
    around = [
        line.split()[0] + line.split()[1] for line in lines if "captureMode" in line or "LoadData" in line
    ]
    assert around == ["captureMode2", "hipModuleLoadDatadevice", "captureMode0"]


@pytest.mark.parametrize(
    ("call", "environ", "words"),
    [
        (
            "prepare(LaunchConfig(1, 256, shared_bytes=65537))",
            {},
            "needs 65537 B of LDS a block, available are 65536 B",
        ),
        (
            "prepare(LaunchConfig(1, 256, shared_bytes=60000))",
            {"FAKE_HIP_STATIC_LDS": "6000"},
            "needs 66000 B of LDS a block, available are 65536 B",
        ),
        (
            "prepare(LaunchConfig(1, 512))",
            {"FAKE_HIP_FUNCTION_THREADS": "256"},
            "needs 512 threads a block, available are 1 to 256",
        ),
        (
            "prepare(LaunchConfig(2**24, 256))",
            {},
            "needs a grid of 16777216 blocks, available are 1 to 16777215",
        ),
        ("prepare(LaunchConfig(2, 256, cluster=2))", {}, "needs clusters of 2 blocks, available is 1"),
        (
            "prepare()",
            {"FAKE_HIP_ARCH": "gfx942:sramecc+:xnack-"},
            "compiled for gfx90a, the device is gfx942 (sramecc+:xnack-)",
        ),
        (
            "prepare()",
            {"FAKE_HIP_FAIL": "hipModuleLoadData:209"},
            "hipModuleLoadData returned hipErrorNoBinaryForGpu",
        ),
        (
            "prepare()",
            {"FAKE_HIP_FAIL": "hipModuleGetFunction:500"},
            "hipModuleGetFunction returned hipErrorNotFound",
        ),
        ("prepare(device=7)", {}, "rocm:7: hipGetDeviceProperties returned hipErrorInvalidDevice"),
        (
            "prepare()((1, 2), (1.0, 0.0), 0)",
            {"FAKE_HIP_FAIL": "hipModuleLaunchKernel:701"},
            "than a compute unit has), for grid 7, block 256, 1024 B",
        ),
    ],
)
def test_refusals(run: Any, library: Library, call: str, environ: dict[str, str], words: str) -> None:
    """Each names the kernel and device, what is needed and what there is; the next launch works."""
    script = f"""
message = error(lambda: {call})
import os
for name in ("FAKE_HIP_FAIL", "FAKE_HIP_STATIC_LDS", "FAKE_HIP_FUNCTION_THREADS"):
    os.environ.pop(name, None)
print(json.dumps(message))
"""
    message, _ = run(script, library(), **environ)
    assert message.startswith("LaunchError: ")
    assert words in message
    assert "pg_kernel on rocm:" in message or "device=7" in call


def test_hip_counts_otherwise_than_the_kernel(run: Any, library: Library, tmp_path: Path) -> None:
    """Code for the arch the kernel lists at a number where HIP has another: refused, with the way out."""
    for number, version in enumerate((90402, 90010)):
        node = tmp_path / "topology" / "nodes" / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(f"simd_count 440\nsimd_per_cu 4\ngfx_target_version {version}\n")
    script = f"""
backend.BACKEND.driver()
kfd.TOPOLOGY = Path({str(tmp_path / "topology")!r})
print(json.dumps([error(lambda: prepare(device=1)), error(lambda: prepare(device=0))]))
"""
    (wrong, right), _ = run(script, library(), FAKE_HIP_ARCH="gfx90a:sramecc+:xnack-,gfx942:sramecc+:xnack-")
    assert "compiled for gfx90a, the device is gfx942" in wrong
    assert "HIP counts the devices in another order" in wrong
    assert right == "no error"


CODES = {
    1: "hipErrorInvalidValue (HIP refused an argument",
    2: "hipErrorOutOfMemory (the device's memory is full",
    3: "hipErrorNotInitialized (HIP is not initialised in this process",
    35: "hipErrorInsufficientDriver (the amdgpu driver is older",
    100: "hipErrorNoDevice (HIP sees no GPU",
    101: "hipErrorInvalidDevice (HIP knows no device of that index",
    200: "hipErrorInvalidImage (not a code object this ROCm loads",
    209: "hipErrorNoBinaryForGpu (the code object is for another target",
    303: "hipErrorSharedObjectInitFailed (the code object could not be loaded",
    400: "(a stream or module of another device",
    500: "hipErrorNotFound (the code object has no kernel of that name",
    700: "hipErrorIllegalAddress (a kernel before this one failed",
    701: "hipErrorLaunchOutOfResources (a block needs more registers",
    702: "hipErrorLaunchTimeOut (a kernel before this one failed",
    719: "hipErrorLaunchFailure (a kernel before this one failed",
    900: "hipErrorStreamCaptureUnsupported (not allowed while a graph is captured",
}


def test_every_code_at_every_call(run: Any, library: Library) -> None:
    """Each call that can fail, with each error: a LaunchError that names call, error and its meaning, and
    HIP's last error is taken, so that torch does not report it a second time."""
    script = f"""
import os
hip = binding.runtime()
launches = dict(here=prepare(), there=prepare(device=1))
found = []
for call in ("hipGetDeviceProperties", "hipModuleLoadData", "hipModuleGetFunction", "hipFuncGetAttribute",
             "hipSetDevice", "hipGetDevice", "hipModuleLaunchKernel"):
    for code in {sorted(CODES)}:
        driver = backend.RocmBackend().driver()  # a fresh one has read no limits and loaded nothing
        os.environ["FAKE_HIP_FAIL"] = f"{{call}}:{{code}}"
        if call == "hipModuleLaunchKernel":
            message = error(lambda: launches["here"]((1, 2), (1.0, 0.0), 0))
        elif call in ("hipSetDevice", "hipGetDevice"):
            message = error(lambda: launches["there"]((1, 2), (1.0, 0.0), 0))
        else:
            message = error(lambda: driver.prepare(CODE, LaunchConfig(7, 256), BLOCK, 0))
        del os.environ["FAKE_HIP_FAIL"]
        (last,) = hip.hipGetLastError()
        found.append([call, code, message, int(last)])
launches["here"]((1, 2), (1.0, 0.0), 0)
print(json.dumps(found))
"""
    found, lines = run(script, library())
    assert len(found) == 7 * len(CODES)
    for call, code, message, last in found:
        assert message.startswith("LaunchError: ") and call in message and CODES[code] in message
        assert last == 0, (call, code)
    assert lines[-1].startswith("launch "), "usable afterwards"


def test_usable_after_an_error(run: Any, library: Library) -> None:
    script = """
first = error(lambda: prepare(LaunchConfig(1, 256, shared_bytes=1 << 20)))
prepare()((1, 2), (1.0, 0.0), 0)
print(json.dumps(first))
"""
    message, lines = run(script, library())
    assert message.startswith("LaunchError")
    assert any(line.startswith("launch") for line in lines)


# --- hiprtc --------------------------------------------------------------------------------------------------

HIPRTC = """
from portagemm.backends.rocm.compiler import HiprtcCompiler
from portagemm.hal.compiler import CompileOptions
compiler = HiprtcCompiler()
options = CompileOptions((Path("/headers"),), (("N", "4"),))
"""


def test_hiprtc(run: Any, library: Library) -> None:
    script = """
code = compiler.compile("the source", "pg_kernel", Target("rocm", "gfx90a", 64), options)
print(json.dumps([compiler.unavailable_reason(), code.code.decode(), code.compiler, code.log]))
"""
    (reason, code, identity, log), lines = run(HIPRTC + script, library())
    assert reason is None
    options, source = code.rsplit("\n", 1)
    assert source == "the source"
    assert {"--offload-arch=gfx90a", "-std=c++20", "-O3", "-DN=4", "-I/headers"} <= set(options.split("\n"))
    assert identity == "hiprtc 7.0 (libhiprtc.so)"
    assert log == ""
    assert lines == ["pg_kernel.hip", "destroyed"]


def test_hiprtc_error_has_the_log(run: Any, library: Library) -> None:
    script = """
print(json.dumps(error(lambda: compiler.compile("#error", "pg_kernel", Target("rocm", "gfx90a", 64), options))))
"""
    message, lines = run(HIPRTC + script, library())
    assert message.startswith(
        "CompileError: kernel pg_kernel for rocm:gfx90a did not compile with hiprtc 7.0"
    )
    assert "error: as asked" in message
    assert lines[-1] == "destroyed"


def test_hiprtc_without_a_symbol(run: Any, library: Library) -> None:
    reason, _ = run(HIPRTC + "print(json.dumps(compiler.unavailable_reason()))", library("-DMISSING_SYMBOL"))
    assert "libhiprtc.so has no hiprtcVersion" in reason


def test_hiprtc_without_library(run: Any, tmp_path: Path) -> None:
    reason, _ = run(HIPRTC + "print(json.dumps(compiler.unavailable_reason()))", tmp_path)
    assert "found no libhiprtc.so" in reason
