"""Clusters, over all ranks: what must be equal and is not, the rank that is missing, the GPU used twice."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from portagemm.doctor.check import Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.facts import version_tuple
from portagemm.doctor.ranks import Ranks, fact, names

_READS = ("cluster.facts in each report",)


#: Messages, and evidence as pairs.
Differences = tuple[list[str], list[tuple[str, object]]]


def _differences(ranks: Ranks, key: str) -> Differences | None:
    """What differs in a mapping of cluster.facts: messages and evidence. None if nobody has it."""
    if all(not fact(report, key) for _, report in ranks.ordered):
        return None
    fields = sorted({name for _, report in ranks.ordered for name in fact(report, key) or {}})
    messages: list[str] = []
    evidence: list[tuple[str, object]] = []
    for field in fields:
        groups = ranks.groups(_field(key, field))
        if len(groups) > 1:
            odd, who = groups[-1]
            messages.append(
                f"{field}: {_shown(odd)} on {names(who)}, {_shown(groups[0][0])} on {_rest(groups)}"
            )
            evidence += [(f"{field} = {_shown(value)}", names(who)) for value, who in groups]
    return messages, evidence


def _field(key: str, field: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda report: (fact(report, key) or {}).get(field)


def _rest(groups: list[tuple[Any, list[str]]]) -> str:
    count = len(groups[0][1])
    return names(groups[0][1]) if count == 1 else f"{count} others"


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "none"
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _same(ranks: Ranks, key: str, what: str) -> Result | Differences:
    found = _differences(ranks, key)
    if found is None:
        return skip(f"no report says {what}")
    if not found[0]:
        return passed(f"the same on {len(ranks.reports)} ranks")
    return found


def _majors(ranks: Ranks, key: str) -> bool:
    """Whether a version in the mapping differs in its first number, or is missing on some rank."""
    fields = {name for _, report in ranks.ordered for name in fact(report, key) or {}}
    for field in fields:
        values = [(fact(report, key) or {}).get(field) for _, report in ranks.ordered]
        if (
            any(value is None for value in values)
            or len({version_tuple(str(value))[:1] for value in values}) > 1
        ):
            return True
    return False


def _compared(
    ranks: Ranks, key: str, what: str, verdict: Callable[..., Result] | None, *remedies: Remedy
) -> Result:
    """The ranks' facts of that key side by side. No verdict: a difference fails by a first number, else it warns."""
    found = _same(ranks, key, what)
    if isinstance(found, Result):
        return found
    texts, evidence = found
    verdict = verdict or (fail if _majors(ranks, key) else warn)
    return verdict(texts[0], details=texts[1:], evidence=evidence, remedies=remedies)


@check(
    "cluster.missing-rank",
    "Every rank has reported",
    reads=("rank and world_size of each report",),
    severity="blocks-use",
    probe="compare",
)
def missing_rank(ranks: Ranks) -> Result:
    """Compares the ranks that reported with the number that the launcher announced. A rank without a report did not
    start, or hangs; two reports of one rank are of two jobs."""
    seen = [report["machine"].get("rank") for _, report in ranks.ordered]
    if ranks.unreadable:
        name, why = next(iter(ranks.unreadable.items()))
        more = f", and {len(ranks.unreadable) - 1} more" if len(ranks.unreadable) > 1 else ""
        return fail(
            f"a report cannot be used: {name}: {why}{more}",
            evidence=list(ranks.unreadable.items()),
            remedies=(Remedy("Make it again on that machine.", "portagemm doctor --json > report.json"),),
            data={"unreadable": len(ranks.unreadable)},
        )
    world = ranks.world
    if None in seen:
        if len(seen) < world:
            return fail(
                f"{len(seen)} reports, {world} expected",
                remedies=(Remedy("Look at the rank that did not report: its log, its node."),),
            )
        return (
            passed(f"{len(seen)} reports")
            if seen.count(None) == len(seen)
            else skip("some reports are of no rank")
        )
    missing = sorted(set(range(world)) - set(seen))
    twice = sorted({rank for rank in seen if seen.count(rank) > 1})
    if missing:
        return fail(
            f"no report of rank {names([str(rank) for rank in missing])} (of {world})",
            remedies=(Remedy("Look at the rank that did not report: its log, its node."),),
            data={"missing": missing},
        )
    if twice:
        return fail(
            f"several reports of rank {names([str(rank) for rank in twice])}",
            remedies=(Remedy("Compare reports of one job alone."),),
            data={"twice": twice},
        )
    return passed(f"{world} ranks")


@check(
    "cluster.machines",
    "No rank's machine has a failure of its own",
    reads=("the statuses in each report",),
    severity="blocks-use",
    probe="compare",
)
def machines(ranks: Ranks) -> Result:
    """A check that failed on the machine of some rank: that rank will not do its part, however much it is like the
    others. The report of that machine says what to do."""
    failed: dict[str, list[str]] = {}
    for name, report in ranks.ordered:
        for entry in report["checks"]:
            if entry.get("status") in ("FAIL", "ERR"):
                failed.setdefault(str(entry.get("id")), []).append(name)
    if not failed:
        return passed("none") if ranks.reports else skip("no report")
    check_id, who = next(iter(failed.items()))
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return fail(
        f"{check_id} fails on {names(who)}{more}",
        evidence=[(check_id, names(who)) for check_id, who in failed.items()],
        remedies=(
            Remedy(
                "Run the doctor on that machine.", f"portagemm doctor --only {','.join(list(failed)[:4])}"
            ),
        ),
        data={"failed": failed},
    )


@check("cluster.gpu", "All ranks have the same GPUs", reads=_READS, severity="blocks-use", probe="compare")
def gpu(ranks: Ranks) -> Result:
    """Model, architecture, memory, partition and number of the GPUs. Collectives over unlike GPUs hang or wait for the
    slowest, and kernels are chosen by the model: the same call gives other bits on other ranks."""

    def kinds(report: Mapping[str, Any]) -> tuple[str, ...]:
        # what a GPU is, in a comparable form, without order: nodes number their slots as they like
        return tuple(
            sorted(", ".join(f"{v}" for _, v in sorted(item.items())) for item in fact(report, "gpus") or ())
        )

    groups = ranks.groups(kinds)
    if len(groups) < 2:
        if not groups or not groups[0][0]:
            return skip("no rank has a GPU")
        return passed(f"{len(groups[0][0])} GPUs on each of {len(ranks.reports)} ranks")
    evidence: list[tuple[str, object]] = [(names(who), "; ".join(value) or "no GPU") for value, who in groups]
    odd, who = groups[-1]
    shown = f"{len(odd)} x {', '.join(sorted(set(odd)))}" if odd else "no GPU"
    return fail(
        f"{names(who)}: {shown}, unlike {_rest(groups)}",
        evidence=evidence,
        remedies=(Remedy("Take that node out of the job, or ask the scheduler for one kind of GPU."),),
    )


@check(
    "cluster.driver", "All ranks have the same GPU driver", reads=_READS, severity="degrades", probe="compare"
)
def driver(ranks: Ranks) -> Result:
    """Kernel drivers of another branch differ in what they support and in their compiler. FAIL if the first number
    differs, WARN if only a later one does."""
    return _compared(
        ranks,
        "drivers",
        "its driver",
        None,
        Remedy("Install one version of the driver on all nodes.", root=True, reboot=True),
    )


@check(
    "cluster.runtime",
    "All ranks have the same torch, compiler and Python",
    reads=_READS,
    severity="degrades",
    probe="compare",
)
def runtime(ranks: Ranks) -> Result:
    """torch, NVRTC, ROCm and Python. FAIL if a first number differs or one is missing on a rank, WARN otherwise."""
    return _compared(
        ranks, "runtime", "its torch", None, Remedy("Use one image or one environment on all nodes.")
    )


@check(
    "cluster.lib", "All ranks have the same GPU libraries", reads=_READS, severity="degrades", probe="compare"
)
def lib(ranks: Ranks) -> Result:
    """Packages of CUDA libraries, bindings and Triton. FAIL if a first number differs or one is missing on a rank."""
    return _compared(
        ranks, "libraries", "its libraries", None, Remedy("Use one image or one environment on all nodes.")
    )


@check(
    "cluster.portagemm",
    "All ranks have the same portagemm, tuning tables and settings",
    reads=(
        "portagemm's version",
        "digests of its sources, kernels and tuning tables",
        "PORTAGEMM_* variables",
    ),
    severity="blocks-use",
    probe="compare",
)
def portagemm(ranks: Ranks) -> Result:
    """Which kernel a call takes, and so the order in which it adds, follows from portagemm's version and the tuning
    table. Ranks that differ in them compute the same product with other bits, and replicated weights drift
    apart. The digest of the kernel sources stands for the cache keys, which are made of them."""

    def versions(report: Mapping[str, Any]) -> str:
        return str(report["machine"].get("portagemm", report.get("tool_version", "")))

    groups = ranks.groups(versions)
    remedies = (Remedy("Install one version of portagemm, and one tuning table, on all nodes."),)
    if len(groups) > 1:
        return fail(
            f"version {groups[-1][0]} on {names(groups[-1][1])}, {groups[0][0]} on {_rest(groups)}",
            evidence=[(version, names(who)) for version, who in groups],
            remedies=remedies,
        )
    return _compared(ranks, "portagemm", "the digests of its installation", fail, *remedies)


@check(
    "cluster.nccl",
    "All ranks have the same NCCL or RCCL, plugins and settings",
    reads=_READS,
    severity="blocks-use",
    probe="compare",
)
def nccl(ranks: Ranks) -> Result:
    """Ranks with different NCCL versions, network plugins or NCCL_* variables negotiate different protocols: the first
    collective hangs, or reports a truncated message."""
    return _compared(
        ranks, "nccl", "its NCCL", fail, Remedy("Use one image and one set of NCCL_* variables on all nodes.")
    )


@check(
    "cluster.env",
    "All ranks have the same settings",
    reads=("CUDA_*, HSA_*, HIP_*, PYTORCH_*, TORCH_* ... variables, as digests",),
    severity="degrades",
    probe="compare",
)
def env(ranks: Ranks) -> Result:
    """Variables that change how the runtime or torch works. Masks, paths and what launchers set by rank do not count;
    values are compared as digests."""
    found = _same(ranks, "env", "its variables")
    if isinstance(found, Result):
        return found
    fields = [text.partition(":")[0] for text in found[0]]
    odd = ranks.groups(_field("env", fields[0]))[-1][1]
    return warn(
        f"{', '.join(fields[:4])} differ{'s' if len(fields) == 1 else ''} (on {names(odd)})",
        evidence=found[1],
        remedies=(Remedy("Set the same variables on all ranks (mpirun -x, srun --export, the pod's spec)."),),
    )


@check(
    "cluster.hca",
    "All hosts have the same network adapters, and their links are up",
    reads=("/sys/class/infiniband",),
    severity="degrades",
    probe="compare",
)
def hca(ranks: Ranks) -> Result:
    """InfiniBand and RoCE ports with their rate and state. A port that is down or slower on one host slows or stops
    every collective."""
    return _compared(
        ranks, "hca", "its adapters", warn, Remedy("Look at cable, switch port and adapter.", "ibstat")
    )


@check(
    "cluster.cpu",
    "All hosts have the same processors",
    reads=("/proc/cpuinfo",),
    severity="degrades",
    probe="compare",
)
def cpu(ranks: Ranks) -> Result:
    """Processors of two vendors give NCCL other topologies, and code that is built for "this CPU" on a shared disk does
    not run on the other."""
    return _compared(
        ranks, "cpu", "its processor", warn, Remedy("Ask the scheduler for one kind of node (--constraint).")
    )


@check(
    "cluster.duplicate-gpu",
    "No GPU is used by two ranks",
    reads=("LOCAL_RANK and the UUIDs of the visible GPUs",),
    severity="blocks-use",
    probe="compare",
)
def duplicate_gpu(ranks: Ranks) -> Result:
    """Two ranks of a host that use one GPU: NCCL refuses it ("Duplicate GPU detected"). Each rank is taken to use the
    GPU of its local rank, or the only one it sees."""
    used: dict[tuple[str, str], list[str]] = {}
    for name, report in ranks.ordered:
        device = fact(report, "device")
        if device:
            used.setdefault((report["machine"].get("host", ""), device), []).append(name)
    if not used:
        return skip("no report says which GPU its rank uses")
    twice = {key: who for key, who in used.items() if len(who) > 1}
    if twice:
        (_, device), who = next(iter(twice.items()))
        return fail(
            f"{names(who)} use the same GPU",
            evidence=[(device, names(who)) for (_, device), who in twice.items()],
            remedies=(
                Remedy("Set each rank's device.", "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"),
                Remedy("Look for a mask that shows every rank the same GPU."),
            ),
            data={"count": len(twice)},
        )
    return passed(f"{len(used)} GPUs, each used once")


#: Reports that are gathered together are made within seconds of each other.
CLOCK_SECONDS = 60.0


@check(
    "cluster.clock",
    "The hosts' clocks agree",
    reads=("the time of each report",),
    severity="cosmetic",
    probe="compare",
)
def clock(ranks: Ranks) -> Result:
    """Times in logs can be compared only if the clocks agree. Reports gathered by `--cluster` are made at the same
    moment; those that were made one after the other differ for that reason alone."""
    times = []
    for name, report in ranks.ordered:
        try:
            times.append((datetime.datetime.fromisoformat(str(report["created"])), name))
        except (KeyError, ValueError):
            continue
    if len(times) < 2:
        return skip("fewer than two reports say when they were made")
    try:
        first, last = min(times), max(times)
    except TypeError:  # one has a time zone, another has none
        return skip("the reports' times cannot be compared")
    seconds = (last[0] - first[0]).total_seconds()
    if seconds > CLOCK_SECONDS:
        return info(
            f"reports lie {seconds:.0f} s apart ({first[1]} first, {last[1]} last)",
            remedies=(
                Remedy("If they were made together, synchronise the clocks.", "timedatectl", root=True),
            ),
            data={"seconds": seconds},
        )
    return passed(f"within {seconds:.0f} s", data={"seconds": seconds})
