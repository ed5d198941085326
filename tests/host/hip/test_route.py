"""From the operation to the result as on a ROCm machine: plan, hiprtc, load, launch, under the unmodified hip-python.

Under hip-python lies a HIP runtime and a hiprtc of C (tests/fake_rocm): hiprtc compiles by clang, a launch runs what
the test gives for a GPU. torch's CPU tensors stand in for device memory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ...fake_rocm import build  # noqa: TID252
from .conftest import Child, Folder


def test_operations(child: Child, tmp_path: Path) -> None:
    """matmul, linear and gemm give the right numbers, compiled by hiprtc, launched once each."""
    script = """
machine = Machine(model.execute)
a, b = torch.randn(72, 96).half(), torch.randn(96, 80).half()
w, bias, c = torch.randn(80, 96).half(), torch.randn(80).half(), torch.randn(72, 80).half()
results = [
    (pg.matmul(a, b, fallback="error"), a.double() @ b.double()),
    (pg.matmul(a, b, fallback="error"), a.double() @ b.double()),
    (pg.linear(a, w, bias, fallback="error"), a.double() @ w.double().T + bias.double()),
    (pg.gemm(a, b, c, alpha=0.5, beta=2.0, fallback="error"), 0.5 * a.double() @ b.double() + 2 * c.double()),
    (pg.matmul(a, b, out_dtype=torch.float32, fallback="error"), a.double() @ b.double()),
]
worst = max(float(((x.double() - y).abs() / (1 + y.abs())).max()) for x, y in results)
print(json.dumps([worst, len(machine.launches), machine.faults, str(pg.explain(pg.matmul, a, b))]))
"""
    (worst, launches, faults, explained), lines = child(script, PORTAGEMM_CACHE_DIR=str(tmp_path / "kernels"))
    assert faults == []
    assert worst <= 2.0**-11
    assert launches == 5
    assert "rocm" in explained and "profile mi250x" in explained and "hiprtc 7.0" in explained
    compiled = [line for line in lines if line.startswith("hiprtcCompileProgram")]
    assert len(compiled) == 4, "the second matmul compiles nothing"
    assert sum(line.startswith("hipModuleLoadData") for line in lines) == 4


@pytest.mark.parametrize(
    "arch",
    ["gfx90a:sramecc+:xnack-", "gfx942:sramecc+:xnack-", "gfx1100"],
    ids=["gfx90a", "gfx942", "gfx1100"],
)
def test_executed(child: Child, arch: str) -> None:
    """The whole way with a GPU's work done for real: hiprtc's code object, loaded, launched, run instruction by
    instruction, and the numbers are right."""
    script = """
import executed
machine = Machine(executed.Execute())
a, b = torch.randn(40, 48).half(), torch.randn(48, 72).half()
bias = torch.randn(72).half()
results = [(pg.linear(a, b.T.contiguous(), bias, activation="relu", fallback="error"),
            (a.double() @ b.double() + bias.double()).relu())]
worst = max(float(((x.double() - y).abs() / (1 + y.abs())).max()) for x, y in results)
print(json.dumps([worst, machine.faults, [l.kernel.split("_")[1] for l in machine.launches]]))
"""
    (worst, faults, targets), lines = child(script, FAKE_HIP_ARCH=arch)
    assert faults == []
    assert worst <= 2.0**-10
    assert targets == [arch.partition(":")[0]]
    assert not any(line.startswith("hipModuleUnload") for line in lines)


def test_layouts(child: Child) -> None:
    """Strides, tails, batches and offsets arrive as they are: the same few kernels, many problems."""
    script = """
machine = Machine(model.execute)
cases = [
    testing.Case("hip", 72, 80, 96, "fp16"),
    testing.Case("hip", 1, 8, 8, "fp16"),
    testing.Case("hip", 200, 136, 8, "fp16", a=testing.Memory(pad=8), b=testing.Memory(pad=16)),
    testing.Case("hip", 33, 40, 64, "fp16", batch_a=(3,)),
    testing.Case("hip", 16, 24, 8192, "fp16"),  # K in slices, whose sums a second kernel adds up
    testing.Case("hip", 33, 40, 64, "fp16", batch_a=(2, 3), batch_b=(1, 3)),
]
found = [[r.case.id, r.error] for case in cases for r in [testing.run_case(case, "cpu")] if not r.passed]
print(json.dumps([found, machine.faults[:1], len(machine.launches)]))
"""
    (wrong, faults, launches), lines = child(script)
    assert wrong == [] and faults == []
    assert launches == 14, "each case twice, and the sliced one takes two kernels"
    assert sum(line.startswith("hipModuleLoadData") for line in lines) <= 4


def test_devices_of_the_kernels_topology(child: Child, tmp_path: Path) -> None:
    """With /sys/class/kfd HIP is not asked for devices before the first launch; the rest is the same."""
    node = tmp_path / "kfd" / "nodes" / "1"
    node.mkdir(parents=True)
    (tmp_path / "kfd" / "device").write_text("")
    (node / "properties").write_text(
        "simd_count 440\nsimd_per_cu 4\ngfx_target_version 90010\nlds_size_in_kb 64\nwave_front_size 64\n"
    )
    script = """
machine = Machine(model.execute)
before = len(binding.loaded_libraries("libamdhip64.so.never"))
shown = [[d.torch_device, d.arch] for d in pg.devices() if d.backend == "rocm"]
a = torch.ones(64, 64).half()
print(json.dumps([shown, bool((pg.matmul(a, a, fallback="error") == 64).all()), machine.faults]))
"""
    (shown, right, faults), lines = child(script, FAKE_KFD=str(tmp_path / "kfd"))
    assert shown == [["cuda:0", "gfx90a"]]
    assert right and faults == []
    assert "hipGetDeviceCount" not in lines


# --- what may be missing ---------------------------------------------------------------------------------------

UNAVAILABLE = """
machine = Machine(model.execute)
a = torch.ones(64, 64).half()
message = error(lambda: pg.matmul(a, a, fallback="error"))
right = bool((pg.matmul(a, a) == 64).all())  # fallback="auto": torch's own, and explain says why
print(json.dumps([message, right, str(pg.explain(pg.matmul, a, a)), len(machine.launches)]))
"""


@pytest.mark.parametrize(
    ("flags", "environ", "words"),
    [
        (None, {}, "hip-python found no libamdhip64.so"),
        (("-DMISSING_SYMBOL",), {}, "libamdhip64.so has no hipRuntimeGetVersion"),
        ((), {"FAKE_HIP_DEVICES": "0"}, "the HIP runtime works, but finds no device"),
        ((), {"FAKE_HIP_FAIL": "hipGetDeviceCount:35"}, "hipErrorInsufficientDriver"),
    ],
    ids=["no library", "missing symbol", "no device", "old driver"],
)
def test_unavailable(
    child: Child,
    rocm: Folder,
    tmp_path: Path,
    flags: tuple[str, ...] | None,
    environ: dict[str, str],
    words: str,
) -> None:
    """ROCm's absence in all its forms: a reason under fallback="error", torch's library and the reason else."""
    folder = tmp_path if flags is None else rocm(*flags)
    (message, right, explained, launches), _ = child(UNAVAILABLE, folder, **environ)
    assert message.startswith("BackendUnavailableError: backend rocm is not available")
    assert words in message and words in explained
    assert right and launches == 0


def test_hiprtc_is_missing(child: Child, rocm: Folder, tmp_path: Path) -> None:
    """A ROCm without hiprtc: clang compiles, and explain says so."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so").write_bytes((rocm() / "lib" / "libamdhip64.so").read_bytes())
    script = """
machine = Machine(model.execute)
a = torch.ones(64, 64).half()
right = bool((pg.matmul(a, a, fallback="error") == 64).all())
print(json.dumps([right, str(pg.explain(pg.matmul, a, a))]))
"""
    (right, explained), lines = child(script, tmp_path)
    assert right
    assert "made by" in explained and "clang version" in explained
    assert not any(line.startswith("hiprtc") for line in lines)


def test_kernel_pack(child: Child, rocm: Folder, clang: str, tmp_path: Path) -> None:
    """Kernels built for several targets on a machine without ROCm run on one without a compiler, each on its card."""
    line = [
        sys.executable,
        "-m",
        "portagemm.cli",
        "compile",
        "--arch",
        "gfx90a,gfx942",
        "--shape",
        "64x64x96",
    ]
    line += [
        "--dtype",
        "float16",
        "--layout",
        "nn",
        "--epilogue",
        "none",
        "--best",
        "--out",
        str(tmp_path / "pack"),
    ]
    elsewhere = build.environment(tmp_path / "no ROCm", tmp_path / "no log", PORTAGEMM_CLANG=clang)
    done = subprocess.run(line, env=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so").write_bytes((rocm() / "lib" / "libamdhip64.so").read_bytes())
    script = """
machine = Machine(model.execute)
a, b = torch.ones(64, 96).half(), torch.ones(96, 64).half()
found = []
for card in (0, 1):
    machine.card = card
    _dispatch.clear()
    packed = "from pack" in str(pg.explain(pg.matmul, a, b))  # the call itself leaves it in memory
    right = bool((pg.matmul(a, b, fallback="error") == 96).all())
    found.append([right, machine.launches[-1].kernel.split("_")[1], packed])
message = error(lambda: pg.matmul(a.float(), b.float(), fallback="error"))
print(json.dumps([found, message]))
"""
    (found, message), _ = child(
        script,
        tmp_path,
        FAKE_HIP_ARCH="gfx90a:sramecc+:xnack-,gfx942:sramecc+:xnack-",
        PORTAGEMM_CLANG="/nonexistent/clang++",
        PORTAGEMM_KERNEL_PATH=str(tmp_path / "pack"),
        PORTAGEMM_CACHE_DIR=str(tmp_path / "kernels"),
    )
    assert found == [[True, "gfx90a", True], [True, "gfx942", True]]
    assert message.startswith("NoCompilerError: kernel pg_gfx942_fp32")
    assert (
        "hip-python found no libhiprtc.so" in message and "/nonexistent/clang++: no such program" in message
    )


def test_compile_error(child: Child, tmp_path: Path) -> None:
    """What hiprtc says arrives; under fallback="auto" torch's library serves and explain shows the log."""
    prelude = tmp_path / "prelude.h"
    prelude.write_text("#error planted in the prelude\n")
    (message, right, _, launches), lines = child(
        UNAVAILABLE, FAKE_HIPRTC_PRELUDE=str(prelude), PORTAGEMM_CACHE_DIR=str(tmp_path / "cache")
    )
    assert message.startswith("CompileError: kernel pg_gfx90a_fp16")
    assert "did not compile with hiprtc 7.0" in message and "error: planted in the prelude" in message
    assert right and launches == 0
    assert lines.count("destroyed") == sum(line.startswith("hiprtcCompileProgram") for line in lines)


# --- devices, streams, modules -----------------------------------------------------------------------------------


def test_tensors_on_a_device_that_is_not_current(child: Child) -> None:
    """Loading and launching happen on the tensors' card and its current stream; the current device is put back."""
    script = """
machine = Machine(model.execute)
hip = machine.hip()
def stream_on(card):
    before = int(binding.check("get", hip.hipGetDevice()))
    binding.check("set", hip.hipSetDevice(card))
    stream = binding.check("create", hip.hipStreamCreate())
    binding.check("set", hip.hipSetDevice(before))
    return int(stream)
machine.streams = {0: stream_on(0), 1: stream_on(1)}
a = torch.ones(64, 64).half()
seen = []
for card in (1, 0, 1):
    machine.card = card
    _dispatch.clear()
    right = bool((pg.matmul(a, a, fallback="error") == 64).all())
    now = int(binding.check("get", hip.hipGetDevice()))
    seen.append([right, now, machine.launches[-1].device, machine.launches[-1].stream == machine.streams[card]])
machine.streams[1] = 0  # the null stream
right = bool((pg.matmul(a, a, fallback="error") == 64).all())
seen.append([right, 0, machine.launches[-1].device, machine.launches[-1].stream == 0])
machine.streams[1] = machine.streams[0]  # a stream of another card
message = error(lambda: pg.matmul(a, a, fallback="error"))
machine.streams[1] = 0
again = bool((pg.matmul(a, a, fallback="error") == 64).all())
print(json.dumps([seen, machine.faults, message, again]))
"""
    (seen, faults, message, again), lines = child(script)
    assert seen == [[True, 0, card, True] for card in (1, 0, 1, 1)]
    assert faults == []
    assert (
        message.startswith("LaunchError: kernel pg_gfx90a")
        and "a stream or module of another device" in message
    )
    assert again
    loads = [line.split()[2] for line in lines if line.startswith("hipModuleLoadData")]
    assert loads == ["1", "0"], "one load a device, and none after launch.clear()"


def test_modules_stay_loaded(child: Child) -> None:
    """Forgotten launches unload nothing (a captured graph may hold the kernel); a module lost anyway is an error."""
    script = """
machine = Machine(model.execute)
hip = machine.hip()
a = torch.ones(64, 64).half()
real, modules = hip.hipModuleLoadData, []
def load(image):
    result = real(image)
    modules.append(result[1])
    return result
hip.hipModuleLoadData = load
for _ in range(3):
    pg.matmul(a, a, fallback="error")
    _dispatch.clear()
pg.matmul(a, a, fallback="error")
hip.hipModuleUnload(modules[0])
message = error(lambda: pg.matmul(a, a, fallback="error"))
(last,) = hip.hipGetLastError()
print(json.dumps([len(modules), message, int(last)]))
"""
    (loaded, message, last), lines = child(script)
    assert loaded == 1
    assert lines.count("hipModuleUnload") == 1, "the test's own"
    assert message.startswith("LaunchError: kernel pg_gfx90a") and "hipModuleLaunchKernel returned" in message
    assert last == 0


def test_two_targets_in_one_machine(child: Child) -> None:
    """G14: each card gets the profile and the code of its own target, chosen when it is used."""
    script = """
machine = Machine(model.execute)
a = torch.ones(64, 64).half()
found = []
for card in (0, 1, 2):
    machine.card = card
    _dispatch.clear()
    message = error(lambda: pg.matmul(a, a, fallback="error"))
    found.append([message, machine.launches[-1].kernel.split("_")[1], machine.launches[-1].device])
print(json.dumps(found))
"""
    archs = "gfx90a:sramecc+:xnack-,gfx942:sramecc+:xnack-,gfx90a:sramecc+:xnack-"
    found, _ = child(script, FAKE_HIP_ARCH=archs)
    assert found == [["no error", "gfx90a", 0], ["no error", "gfx942", 1], ["no error", "gfx90a", 2]]


def test_an_unknown_target_beside_a_known_one(child: Child) -> None:
    """An AMD device no profile is made for is refused with what is known; its neighbour works."""
    script = """
machine = Machine(model.execute)
a = torch.ones(64, 64).half()
machine.card = 1
message = error(lambda: pg.matmul(a, a, fallback="error"))
machine.card = 0
_dispatch.clear()
print(json.dumps([message, bool((pg.matmul(a, a, fallback="error") == 64).all())]))
"""
    (message, right), _ = child(script, FAKE_HIP_ARCH="gfx90a:sramecc+:xnack-,gfx906:sramecc+:xnack-")
    assert message.startswith(
        "ProfileError: device AMD Radeon Graphics (rocm:1, gfx906): no arch profile fits"
    )
    assert "mi250x (gfx90a)" in message
    assert right


# --- G37: refused launches -----------------------------------------------------------------------------------------


def test_g37_refused_launches(child: Child) -> None:
    """Too much LDS, another arch's code, a grid beyond HIP's limit, a failing kernel: an error that names kernel,
    shape, need and limit; the output is never handed out as it was, and the next call works."""
    script = """
from dataclasses import replace
from portagemm import plan as planner

fail = False
def execute(launch):
    if fail:
        raise RuntimeError("as asked")
    model.execute(launch)
machine = Machine(execute)
hip = machine.hip()
a = torch.ones(64, 96).half()
b = torch.ones(96, 64).half()
device = launch.device_of(torch.device("cpu"))
problem = testing.problem(testing.Case("G37", 64, 64, 96, "fp16"))
plan = launch.planned(problem, device)
messages = {}
for name, change in (("lds", {"shared_bytes": 147456}), ("grid", {"grid": 1 << 25}), ("threads", {"block": 2048})):
    launch.clear()
    messages[name] = error(lambda: launch.launcher(problem, device, replace(plan, **change)))

code = launch.code_of(launch.sources_of(plan, device)[0]).code
driver = launch.launcher(problem, device).driver
elsewhere = code.code[:48] + bytes([0x4c]) + code.code[49:]  # e_flags of gfx942
for name, image in (("image", b"\\x7fELF" + bytes(2000)), ("arch", elsewhere)):
    broken = replace(code, code=image)
    messages[name] = error(
        lambda: driver.prepare(broken, planner.launch_config(plan), planner.arguments(problem, plan), 0)
    )

fail = True
messages["kernel"] = error(lambda: pg.matmul(a, b, fallback="auto"))
fail = False
(last,) = hip.hipGetLastError()
right = bool((pg.matmul(a, b, fallback="error") == 96).all())
print(json.dumps([messages, int(last), right, plan.kernel.symbol("gfx90a")]))
"""
    (messages, last, right, symbol), _ = child(script)
    for name, words in {
        "lds": "needs 147456 B of LDS a block, available are 65536 B",
        "grid": "needs a grid of 33554432 blocks, available are 1 to ",
        "threads": "needs 2048 threads a block, available are 1 to 1024",
        "image": "hipModuleLoadData returned hipErrorInvalidImage",
        "arch": "hipModuleLoadData returned hipErrorNoBinaryForGpu",
        "kernel": "hipModuleLaunchKernel returned hipErrorLaunchFailure",
    }.items():
        assert messages[name].startswith("LaunchError: kernel "), (name, messages[name])
        assert words in messages[name], (name, messages[name])
        assert "pg_gfx90a" in messages[name]
    for name in ("lds", "grid", "threads"):
        assert symbol in messages[name] and "64x64x96" in messages[name]
    assert last == 0 and right


def test_g37_plans_respect_the_device(child: Child) -> None:
    """A device with less LDS than its arch: the default choice fits it, and explain says what does not."""
    script = """
machine = Machine(model.execute)
a = torch.ones(256, 256).half()
right = bool((pg.matmul(a, a, fallback="error") == 256).all())
print(json.dumps([right, machine.launches[-1].dynamic_lds, machine.faults]))
"""
    (right, lds, faults), _ = child(script, FAKE_HIP_LDS="32768")
    assert right and faults == []
    assert lds <= 32768


def test_features_of_a_code_object(child: Child) -> None:
    """A card with the less usual setting of sramecc and xnack loads the same code: kernels are made for either."""
    script = """
machine = Machine(model.execute)
a = torch.ones(64, 64).half()
print(json.dumps([error(lambda: pg.matmul(a, a, fallback="error")), [list(d.notes) for d in pg.devices()][0]]))
"""
    (message, notes), _ = child(script, FAKE_HIP_ARCH="gfx90a:sramecc-:xnack+")
    assert message == "no error"
    assert "sramecc-:xnack+" in notes
