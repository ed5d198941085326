"""What a check is: its facts (`Check`), its outcome (`Result`), its advice (`Remedy`), and the registry.

A check is a function of one `Context` that returns one `Result`:

    @check(
        "wsl.kernel",
        "The WSL2 kernel is new enough for GPUs",
        reads=("/proc/sys/kernel/osrelease",),
        severity="blocks-use",
        needs=("wsl.version",),
    )
    def kernel(ctx: Context) -> Result:
        '''The explanation that `--explain` and the documentation print: what is looked at, why, thresholds.'''
        version = parse(ctx.host.text("/proc/sys/kernel/osrelease"))
        if version < (4, 19, 121):
            return fail(f"kernel {version} is too old", remedies=(UPDATE,), data={"kernel": version})
        return passed(f"kernel {version}")

Statuses: PASS; INFO (worth telling, nothing wrong); WARN (works, but worse than it should); FAIL; SKIP (does
not apply here, or a check it needs did not pass: always with the reason); ERR (the check itself broke; the
runner makes these, a check never returns one).

Only the root of a chain fails: a check that `needs` another is skipped when that one is FAIL, ERR or SKIP. A
check that only wants another's data, or its place in the order, names it in `after` and looks it up by
`ctx.result(id)`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from portagemm.doctor.host import Host

#: How bad a FAIL or WARN of the check is.
Severity = Literal["blocks-use", "degrades", "cosmetic"]
#: What it takes to find out. passive: files and environment only. process: a child process. gpu: a child that
#: creates a context on the device. smoke: runs kernels. compare: needs the reports of several machines.
ProbeClass = Literal["passive", "process", "gpu", "smoke", "compare"]

PROBE_CLASSES: tuple[ProbeClass, ...] = ("passive", "process", "gpu", "smoke", "compare")

#: Groups in the order of the report, with their titles. A check's group is its id up to the first dot.
GROUPS: dict[str, str] = {
    "platform": "Platform",
    "wsl": "WSL",
    "container": "Container",
    "nvidia": "NVIDIA driver and devices",
    "amd": "AMD driver and devices",
    "tool": "Compilers",
    "torch": "PyTorch",
    "libs": "Libraries on the search path",
    "proc": "Process",
    "cache": "Kernel cache",
    "limits": "Limits",
    "cluster": "Cluster",
    "smoke": "Smoke test",
}


class Status(Enum):
    """Outcome of a check, in order of rising alarm (SKIP lowest)."""

    SKIP = "SKIP"
    PASS = "PASS"
    INFO = "INFO"
    WARN = "WARN"
    FAIL = "FAIL"
    ERR = "ERR"


@dataclass(frozen=True)
class Remedy:
    """One thing to do.

    Attributes:
        text: what it does, one sentence. command: the exact command, "" where none can be given.
        root: needs root. reboot, relogin: takes effect after one. windows: to be done on the Windows side of
            WSL. host: to be done outside the container (in its start command, or on the node).
    """

    text: str
    command: str = ""
    root: bool = False
    reboot: bool = False
    relogin: bool = False
    windows: bool = False
    host: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Its conditions in words."""
        marks = (
            (self.root, "needs root"),
            (self.windows, "on the Windows side"),
            (self.host, "outside the container"),
            (self.relogin, "log in again afterwards"),
            (self.reboot, "reboot afterwards"),
        )
        return tuple(text for on, text in marks if on)


@dataclass(frozen=True)
class Evidence:
    """Where a fact was read (a path, a variable, a command) and what stood there."""

    path: str
    value: str


@dataclass(frozen=True)
class Result:
    """Outcome of one check.

    Attributes:
        message: one line for people, without the check's title.
        details: further lines. evidence: what was read. remedies: in order of preference.
        data: JSON values for programs and for the comparison of machines.
        seconds: run time, set by the runner.
    """

    status: Status
    message: str
    details: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


#: Evidence as a check may give it: pairs of (path, value).
Pairs = Sequence[tuple[str, object]]


def _result(
    status: Status,
    message: str,
    details: Sequence[str],
    evidence: Pairs,
    remedies: Sequence[Remedy],
    data: Mapping[str, Any] | None,
) -> Result:
    shown = tuple(Evidence(path, str(value)) for path, value in evidence)
    return Result(status, message, tuple(details), shown, tuple(remedies), dict(data or {}))


def passed(
    message: str,
    *,
    details: Sequence[str] = (),
    evidence: Pairs = (),
    data: Mapping[str, Any] | None = None,
) -> Result:
    """All is well."""
    return _result(Status.PASS, message, details, evidence, (), data)


def info(
    message: str,
    *,
    details: Sequence[str] = (),
    evidence: Pairs = (),
    remedies: Sequence[Remedy] = (),
    data: Mapping[str, Any] | None = None,
) -> Result:
    """Worth telling; nothing is wrong."""
    return _result(Status.INFO, message, details, evidence, remedies, data)


def warn(
    message: str,
    *,
    details: Sequence[str] = (),
    evidence: Pairs = (),
    remedies: Sequence[Remedy],
    data: Mapping[str, Any] | None = None,
) -> Result:
    """Works, but worse than it should. At least one remedy."""
    return _result(Status.WARN, message, details, evidence, remedies, data)


def fail(
    message: str,
    *,
    details: Sequence[str] = (),
    evidence: Pairs = (),
    remedies: Sequence[Remedy],
    data: Mapping[str, Any] | None = None,
) -> Result:
    """Does not work. At least one remedy."""
    return _result(Status.FAIL, message, details, evidence, remedies, data)


def skip(reason: str, *, evidence: Pairs = (), data: Mapping[str, Any] | None = None) -> Result:
    """Does not apply here, or cannot be found out here; say why."""
    return _result(Status.SKIP, reason, (), evidence, (), data)


@dataclass(frozen=True)
class Options:
    """What the user asked for, as far as a check may depend on it.

    Attributes:
        require_gpu: "" (a machine without a GPU is fine), "any", "nvidia" or "amd".
    """

    require_gpu: str = ""


@dataclass(frozen=True)
class Context:
    """What a check is given: the host, the options, and the results so far.

    `results` holds the checks that ran before, by id; use `result` and `data`.
    """

    host: Host
    options: Options = field(default_factory=Options)
    results: Mapping[str, Result] = field(default_factory=dict)

    def result(self, check_id: str) -> Result | None:
        """The result of a check named in `needs` or `after`; None if it did not run (deselected)."""
        return self.results.get(check_id)

    def data(self, check_id: str, key: str, default: Any = None) -> Any:
        """`key` in the data of a check that ran before."""
        result = self.results.get(check_id)
        return default if result is None else result.data.get(key, default)


@dataclass(frozen=True)
class Check:
    """One check and all that is known of it without running it.

    Attributes:
        id: ``group.name``; stable, users and scripts refer to it.
        title: what holds when it passes, one line.
        reads: paths, variables and commands it looks at, as documentation.
        severity, probe: see `Severity`, `ProbeClass`.
        needs: ids that must be PASS, INFO or WARN, else this one is skipped. after: ids only run before it.
        timeout: seconds before the runner gives it up (children and commands have their own, shorter ones).
        explanation: the function's docstring.
        function: Context -> Result; for ``compare`` checks: sequence of report mappings -> Result.
    """

    id: str
    title: str
    reads: tuple[str, ...]
    severity: Severity
    probe: ProbeClass
    needs: tuple[str, ...]
    after: tuple[str, ...]
    timeout: float
    explanation: str
    function: Callable[[Any], Result]

    @property
    def group(self) -> str:
        """The group it is shown in."""
        return self.id.partition(".")[0]


_REGISTRY: dict[str, Check] = {}


def check(
    check_id: str,
    title: str,
    *,
    reads: Sequence[str],
    severity: Severity,
    probe: ProbeClass = "passive",
    needs: Sequence[str] = (),
    after: Sequence[str] = (),
    timeout: float | None = None,
) -> Callable[[Callable[[Any], Result]], Callable[[Any], Result]]:
    """Register the decorated function as the check `check_id`; its docstring is the explanation.

    The function itself is returned unchanged. Raises ValueError for an id of no group, a second definition
    or a missing docstring.
    """

    def register(function: Callable[[Any], Result]) -> Callable[[Any], Result]:
        if check_id.partition(".")[0] not in GROUPS or not check_id.partition(".")[2]:
            raise ValueError(f"check id {check_id!r}: no such group; groups are {', '.join(GROUPS)}")
        if check_id in _REGISTRY and _REGISTRY[check_id].function.__module__ != function.__module__:
            raise ValueError(f"check {check_id} is defined twice")
        text = (function.__doc__ or "").strip()
        if not text:
            raise ValueError(f"check {check_id} has no docstring; it is what --explain prints")
        lines = [line.strip() for line in text.splitlines()]
        limit = timeout if timeout is not None else {"passive": 10.0, "process": 30.0}.get(probe, 300.0)
        _REGISTRY[check_id] = Check(
            id=check_id,
            title=title,
            reads=tuple(reads),
            severity=severity,
            probe=probe,
            needs=tuple(needs),
            after=tuple(after),
            timeout=limit,
            explanation="\n".join(lines),
            function=function,
        )
        return function

    return register


@functools.cache
def _import_checks() -> None:
    from portagemm.doctor import checks

    for module in pkgutil.iter_modules(checks.__path__):
        importlib.import_module(f"{checks.__name__}.{module.name}")


def all_checks() -> dict[str, Check]:
    """Every check by id, in the order of the groups and, in a group, of definition.

    Imports all modules of `portagemm.doctor.checks`.
    """
    _import_checks()
    order = list(GROUPS)
    found = sorted(
        _REGISTRY.values(), key=lambda item: order.index(item.group)
    )  # stable: keeps definition order
    return {item.id: item for item in found}
