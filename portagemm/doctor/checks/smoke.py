"""The smoke test (--smoke): memory, copies between GPUs, and one product of each dtype on each device."""

from __future__ import annotations

from typing import Any

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.facts import fact, wsl
from portagemm.doctor.host import Host
from portagemm.doctor.host_types import Child

#: A first product compiles its kernel: up to minutes on a busy machine.
GEMM_TIMEOUT_S = 600.0
DEVICE_TIMEOUT_S = 120.0
_ROOTS = ("torch.flavour", "torch.arch", "nvidia.cuinit", "nvidia.context", "amd.hip-init")
#: Pinned blocks below this make copies to the device slow.
PINNED_FLOOR_MIB = 256
#: Share of the board's peak below which a large product is slow: clocks held down, or another program's work.
SLOW_SHARE = 0.05
_MIB = 1 << 20
_LOG = Remedy(
    "Read the kernel log for the GPU's faults.", "sudo dmesg | grep -iE 'xid|nvrm|amdgpu'", root=True
)


@fact
def devices(host: Host) -> Child:
    """The child that asks torch which devices there are. See probes/smoke.py."""
    return host.child("smoke", "devices", timeout=DEVICE_TIMEOUT_S)


def _names(host: Host) -> list[str]:
    value = devices(host).value
    return [str(name) for name in value.get("names", ())] if isinstance(value, dict) else []


def _ran(
    ctx: Context, *args: str, timeout: float = DEVICE_TIMEOUT_S, gpus: int = 1
) -> dict[str, Any] | Result:
    """What the child found, or the result of a check that cannot run, or whose child broke."""
    host = ctx.host
    if not devices(host).recorded:
        return skip("not recorded for this machine")
    count = len(_names(host))
    if count < gpus:
        return skip(
            "no GPU that torch can use" if gpus == 1 else f"fewer than {gpus} GPUs that torch can use"
        )
    child = host.child("smoke", *args, timeout=timeout)
    if not child.recorded:
        return skip("not recorded for this machine")
    facts = child.value if isinstance(child.value, dict) else {}
    if not child.ok or facts.get("stage") != "done":
        return _broke(child, facts)
    return facts


def _broke(child: Child, facts: dict[str, Any]) -> Result:
    how = (
        f"crashes with {child.crashed}"
        if child.crashed
        else "does not end"
        if child.timed_out
        else child.command.say()
    )
    stage = facts.get("stage", "start")
    where = "" if stage == "start" else f" ({stage})"
    tail = child.command.stderr.strip().splitlines()[-1:]
    return fail(f"{how}{where}", details=tail, remedies=(_LOG,), data={"stage": stage})


@check(
    "smoke.alloc",
    "Memory of every GPU can be written and read",
    reads=("a small block on each GPU, in a child",),
    severity="blocks-use",
    probe="smoke",
    needs=("torch.import",),
    after=_ROOTS,
    timeout=2 * DEVICE_TIMEOUT_S + 10,
)
def alloc(ctx: Context) -> Result:
    """Writes a megabyte on each GPU, by a kernel of torch's, reads it back and compares."""
    facts = _ran(ctx, "alloc")
    if isinstance(facts, Result):
        return facts
    bad = [f"cuda:{index}: {error}" for index, error in enumerate(facts["results"]) if error]
    if bad:
        return fail(bad[0], details=bad[1:], remedies=(_LOG,))
    return passed(f"on {len(facts['results'])} GPU{'s' if len(facts['results']) > 1 else ''}")


@check(
    "smoke.pinned",
    "Pinned host memory can be had in useful blocks",
    reads=("a pinned block of 256 MiB, halved until one is given, in a child",),
    severity="degrades",
    probe="smoke",
    needs=("torch.import",),
    after=_ROOTS,
    timeout=2 * DEVICE_TIMEOUT_S + 10,
)
def pinned(ctx: Context) -> Result:
    """Pinned memory makes copies to the GPU fast. WSL2 gives little of it; limits on locked memory may forbid it."""
    facts = _ran(ctx, "pinned")
    if isinstance(facts, Result):
        return facts
    size = int(facts["size"]) // _MIB
    if size >= PINNED_FLOOR_MIB:
        return passed(f"{size} MiB at once", data={"mib": size})
    remedies = [Remedy("Use pageable memory, or smaller blocks.")]
    if wsl(ctx.host):
        remedies.append(
            Remedy(
                "Raise memory= under [wsl2] in .wslconfig, then restart WSL.", "wsl --shutdown", windows=True
            )
        )
    message = f"only {size} MiB at once" if size else "none, not even 1 MiB"
    return warn(message, details=tuple(facts.get("errors", ())[-1:]), remedies=remedies, data={"mib": size})


@check(
    "smoke.p2p",
    "Copies between GPUs arrive unchanged",
    reads=("16 MiB copied from each GPU to each other and compared, in a child",),
    severity="blocks-use",
    probe="smoke",
    needs=("torch.import",),
    after=(*_ROOTS, "cluster.acs"),
    timeout=2 * DEVICE_TIMEOUT_S + 10,
)
def p2p(ctx: Context) -> Result:
    """Copies a block between each pair of GPUs and compares it. ACS or an IOMMU on the way can corrupt direct copies
    without any error."""
    facts = _ran(ctx, "p2p", gpus=2)
    if isinstance(facts, Result):
        return facts
    data = {"pairs": facts["pairs"], "direct": facts["direct"]}
    if facts["wrong"]:
        a, b, what = facts["wrong"][0]
        return fail(
            f"cuda:{a} to cuda:{b}: {what}"
            + (f", and {len(facts['wrong']) - 1} more pairs" if len(facts["wrong"]) > 1 else ""),
            remedies=(
                Remedy(
                    "Switch ACS off in the firmware's setup and boot with iommu=pt.", root=True, reboot=True
                ),
                Remedy("Until then keep NCCL from direct copies.", "export NCCL_P2P_DISABLE=1"),
            ),
            data=data,
        )
    return passed(f"{facts['pairs']} pairs, {facts['direct']} of them directly", data=data)


@check(
    "smoke.gemm",
    "portagemm multiplies rightly on every device",
    reads=("one product of each dtype on each device, the CPU included, in a child each",),
    severity="blocks-use",
    probe="smoke",
    needs=("torch.import",),
    after=(*_ROOTS, "tool.nvrtc", "tool.cc", "cache.writable"),
    timeout=4 * GEMM_TIMEOUT_S,
)
def gemm(ctx: Context) -> Result:
    """Multiplies a 129x133 by a 133x131 matrix of each dtype on each device with portagemm's own kernel and compares
    with FP64 on the CPU: no element may be off by more than 1.5 units of the output's rounding and 2^-17 of the
    row's and column's norms (T16). The details say which profile and plan ran.

    FAIL: a wrong result, an error, a crash or a hang. WARN: a GPU on which torch's library takes portagemm's place
    (on a CPU without a compiler that is as it should be), or that reaches less than a twentieth of its peak.
    """
    host = ctx.host
    if not devices(host).recorded:
        return skip("not recorded for this machine")
    names = _names(host)
    wrong: list[str] = []
    elsewhere: list[str] = []
    slow: list[str] = []
    details: list[str] = []
    count = 0
    for where, name in (("cpu", "CPU"), *((f"cuda:{index}", name) for index, name in enumerate(names))):
        child = host.child("smoke", "gemm", where, timeout=GEMM_TIMEOUT_S)
        if not child.recorded:
            continue
        facts = child.value if isinstance(child.value, dict) else {}
        for entry in facts.get("results", ()):
            if entry["error"]:
                wrong.append(f"{where} {entry['dtype']}: {entry['error']}")
            elif entry["route"] == "own":
                count += 1
                details.append(
                    f"{where} ({name}) {entry['dtype']}: profile {entry['profile']}, {entry['plan']}; largest error"
                    f" {entry['violation']:.2f} of what is allowed, {entry['seconds']:.1f} s"
                )
            elif entry["route"] == "vendor" and where == "cpu":
                details.append(f"cpu {entry['dtype']}: torch's library; {entry.get('reason', '')}")
            elif entry["route"] == "vendor":
                elsewhere.append(f"{where} {entry['dtype']}: torch's library; {entry.get('reason', '')}")
        speed = facts.get("speed") or {}
        if speed.get("peak"):
            share = speed["flops"] / speed["peak"]
            details.append(
                f"{where}: {speed['flops'] / 1e12:.1f} Tflop/s in bf16, {share:.0%} of the board's peak"
            )
            if share < SLOW_SHARE:
                slow.append(f"{where} reaches {share:.1%} of its peak in bf16")
        if not child.ok or facts.get("stage") != "done":
            broke = _broke(child, facts)
            wrong.append(f"{where}: {broke.message}")
            details += [f"{where}: {line}" for line in broke.details]
    data = {"devices": ["cpu", *names], "right": count, "wrong": wrong, "vendor": elsewhere}
    if wrong:
        return fail(
            wrong[0] + (f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""),
            details=[*wrong[1:], *details],
            remedies=(
                Remedy("Take the kernel cache out of the question.", "portagemm cache clear"),
                Remedy(
                    "Report it with this machine's bundle.",
                    "portagemm doctor --smoke --save-bundle bundle.txt",
                ),
            ),
            data=data,
        )
    if elsewhere:
        return warn(
            f"{len(elsewhere)} products went to torch's library",
            details=[*elsewhere, *details],
            remedies=(
                Remedy(
                    "Ask why.",
                    "python -c 'import portagemm as p, torch; a = torch.ones(8, 8); print(p.explain(p.matmul, a, a))'",
                ),
            ),
            data=data,
        )
    if slow:
        return warn(
            slow[0],
            details=[*slow[1:], *details],
            remedies=(
                Remedy(
                    "See what holds the clocks down, and who else uses the GPU.",
                    "nvidia-smi -q -d PERFORMANCE,CLOCK",
                ),
            ),
            data=data,
        )
    if not count:
        return info(
            "torch's library serves the CPU" if details else "nothing ran", details=details, data=data
        )
    return passed(
        f"{count} products right on {1 + len(names)} device{'s' if names else ''}", details=details, data=data
    )
