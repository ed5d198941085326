"""Runs a suite on one device and returns its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

import torch

from portagemm import launch
from portagemm.hal.device import Device
from portagemm.hal.dtypes import BY_NAME
from portagemm.hal.errors import PortaGemmError

from . import environment, operands, peers
from .digest import sources_digest
from .probe import ReadProbe
from .report import Report, Row
from .search import Search
from .suites import BenchCase
from .timing import MOST_IN_CHAIN, Call, Effort, Timer, host_cost, make_timer

#: Weights a chain rotates over, in bytes, so that no cache holds them.
CHAIN_BYTES = 1 << 30
_CHAIN_BYTES_CPU = 1 << 27
#: Edge of the square product whose host cost is measured, and how many sets of operands take turns.
HOST_EDGE = 64
_HOST_SETS = 64


@dataclass(frozen=True)
class Options:
    """How to run.

    Attributes:
        device: torch device string. peers: names, torch first. effort: of each measurement.
        budget: seconds after which the remaining cases become rows with an error; None: no limit.
        host_calls: calls of the host-cost measurement; 0 leaves it out.
        probe: time the read-only probe. ceilings: measure copy, read and matrix ceilings.
        search: seconds a case may spend on searching all plans for the fastest; None: no search.
    """

    device: str = "cpu"
    peers: tuple[str, ...] = ("torch",)
    effort: Effort = field(default_factory=Effort)
    budget: float | None = None
    host_calls: int = 10_000
    probe: bool = True
    ceilings: bool = True
    search: float | None = None


class Runner:
    """One run's state: timer, peers, probe and what was measured once for all cases."""

    def __init__(self, device: Device, options: Options) -> None:
        self.device, self.options = device, options
        self.clock = environment.ClockReader(options.device)
        self.timer: Timer = make_timer(options.device, device.l2_bytes, self.clock)
        self.peers, self.missing_peers = peers.available(options.peers, options.device)
        self.probe = ReadProbe(device, self.timer) if options.probe else None
        self.weights = operands.Weights()
        self._host: dict[str, dict[str, float]] = {}

    def run(self, suite: str, cases: Sequence[BenchCase], progress: Callable[[Row], None]) -> Report:
        """All cases, a row for each of their timings; `progress` sees every row. Never raises for a case."""
        started = time.monotonic()
        report = Report(
            suite=suite,
            gpu=self.device.name,
            driver=environment.driver_version(self.options.device),
            versions=environment.versions(),
            commit=environment.commit(),
            sources_digest=sources_digest(self.device.backend),
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            ceilings=self._ceilings(),
            rows=[],
        )
        for case in cases:
            spent = time.monotonic() - started
            if self.options.budget is not None and spent > self.options.budget:
                rows = [Row.of(case, timing) for timing in case.timings]
                for row in rows:
                    row.error = f"not run: the time budget of {self.options.budget:.0f} s was spent"
            else:
                rows = self.run_case(case)
            for row in rows:
                report.rows.append(row)
                progress(row)
        return report

    def run_case(self, case: BenchCase) -> list[Row]:
        """The rows of one case. Whatever goes wrong, in a peer or the probe too, is the error of its row."""
        rows = [Row.of(case, timing) for timing in case.timings]
        try:
            ours = operands.make(case, self.options.device)
            self._check(case, ours, rows)
            self._host_columns(case, rows)
        except Exception as error:
            for row in rows:
                row.error = _text(error)
        for row in rows:
            if row.error is None:
                try:
                    (self._alone if row.timing == "alone" else self._chain)(case, ours, row)
                except Exception as error:
                    row.error = _text(error)
                row.sm_clock_mhz = self.clock.take()
        return rows

    def _check(self, case: BenchCase, ours: operands.Operands, rows: Sequence[Row]) -> None:
        """Describe the plan, run once into a poisoned output and compare with FP64."""
        facts = _describe(case, self.device)
        matmul(ours.a, ours.b, ours.out)
        result = operands.accuracy(case, ours)
        for row in rows:
            row.profile, row.kernel, row.plan, row.route = *facts, "own"
            row.max_rel_err = result.max_rel_err
            if not result.t16 <= 1.0:
                row.error = f"wrong result: {result.t16:.3g} times the T16 bound"

    def _alone(self, case: BenchCase, ours: operands.Operands, row: Row) -> None:
        calls: dict[str, Call] = {"own": lambda: matmul(ours.a, ours.b, ours.out)}
        for peer in self._peers_of(case):
            calls[peer.name] = peer.prepare(ours.a, ours.b, torch.empty_like(ours.out))
        if self.options.search is not None:
            calls["best"] = self._fastest(case, ours, row)
        times = self.timer.alone(calls, self.options.effort)
        row.best_us = times.pop("best", None)
        self._store(case, row, times)
        if self.probe is not None:
            row.read_us = self.probe.alone(_read_bytes(case))

    def _fastest(self, case: BenchCase, ours: operands.Operands, row: Row) -> Call:
        """The fastest of all plans. Raises RuntimeError when one of them gives wrong numbers."""
        search = Search(self.device, self.timer, Effort(0.1), self.options.search)
        found = search(replace(case, timings=("alone",)), ours)
        for plan, why in found.failed:
            if why.startswith("wrong"):
                raise RuntimeError(f"{plan}: {why}")
        row.best_plan = found.plan.explain()
        prepared = launch.launcher(operands.problem(case), self.device, found.plan)
        out = torch.empty_like(ours.out)
        return lambda: prepared(ours.a.data_ptr(), ours.b.data_ptr(), 0, out.data_ptr(), 0)

    def _chain(self, case: BenchCase, ours: operands.Operands, row: Row) -> None:
        total = _CHAIN_BYTES_CPU if self.options.device == "cpu" else CHAIN_BYTES
        weights = self.weights(case, self.options.device, total, MOST_IN_CHAIN)
        # Weights of a chain are what constant_b is for: nothing writes them while it runs.
        calls: dict[str, list[Call]] = {"own": [_bind(ours.a, b, ours.out) for b in weights]}
        for peer in self._peers_of(case):
            out = torch.empty_like(ours.out)
            calls[peer.name] = [peer.prepare(ours.a, b, out) for b in weights]
        self._store(case, row, self.timer.chain(calls, self.options.effort))
        if self.probe is not None:
            row.read_us = self.probe.chain(_read_bytes(case), len(weights))

    def _peers_of(self, case: BenchCase) -> list[peers.Peer]:
        return [peer for peer in self.peers if peer.refuses(case) is None]

    def _store(self, case: BenchCase, row: Row, times: dict[str, float]) -> None:
        row.set_time(times.pop("own"), case, BY_NAME[case.dtype].bytes)
        row.peers_us = times

    def _host_columns(self, case: BenchCase, rows: Sequence[Row]) -> None:
        """Host cost is a property of the path, not of the shape: once a dtype."""
        if not self.options.host_calls:
            return
        if case.dtype not in self._host:
            self._host[case.dtype] = self.host_cost(case.dtype)
        costs = self._host[case.dtype]
        for row in rows:
            row.host_us = costs["own"]
            row.peers_host_us = {name: us for name, us in costs.items() if name != "own"}

    def host_cost(self, dtype: str) -> dict[str, float]:
        """Microseconds of host time a call of 64^3: output allocated, other addresses each time."""
        case = BenchCase("matmul", dtype, "NT", HOST_EDGE, HOST_EDGE, HOST_EDGE)
        sets = [operands.make(case, self.options.device, seed) for seed in range(_HOST_SETS)]
        kept: list[Any] = [None] * _HOST_SETS

        def turn(multiply: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[[int], object]:
            def call(number: int) -> None:
                slot = number % _HOST_SETS
                kept[slot] = multiply(sets[slot].a, sets[slot].b)

            return call

        calls = {"own": turn(matmul_allocating)}
        for peer in self._peers_of(case):
            if peer.allocating is not None:
                calls[peer.name] = turn(peer.allocating)
        return host_cost(calls, self.timer, self.options.host_calls)

    def _ceilings(self) -> dict[str, Any]:
        """Copy and read bandwidth in TB/s, and TFLOP/s of the vendor's largest square products."""
        found: dict[str, Any] = {"copy_tbps": None, "read_tbps": None, "mma_tflops": {}}
        if not self.options.ceilings:
            return found
        small = self.options.device == "cpu"
        size = (1 << 27) if small else (1 << 31)
        source = torch.empty(size // 4, dtype=torch.float32, device=self.options.device).normal_()
        target = torch.empty_like(source)
        us = self.timer.alone({"copy": partial(target.copy_, source)}, self.options.effort)["copy"]
        found["copy_tbps"] = 2 * size / us / 1e6
        del source, target
        if self.probe is not None:
            found["read_tbps"] = size / self.probe.alone(size) / 1e6
        edge = 1024 if small else 8192
        for dtype in ("fp32",) if small else ("bf16", "fp16"):
            case = BenchCase("matmul", dtype, "NT", edge, edge, edge)
            tensors = operands.make(case, self.options.device)
            call = peers.PEERS["torch"].prepare(tensors.a, tensors.b, tensors.out)
            us = self.timer.alone({"mma": call}, self.options.effort)["mma"]
            found["mma_tflops"][dtype] = case.flop / us / 1e6
        return found


def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, constant_b: bool = False) -> object:
    """Our product into `out`, never torch's."""
    import portagemm

    return portagemm.matmul(a, b, out=out, fallback="error", constant_b=constant_b)


def matmul_allocating(a: torch.Tensor, b: torch.Tensor) -> object:
    """Our product into a new tensor, never torch's."""
    import portagemm

    return portagemm.matmul(a, b, fallback="error")


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip()[:2000]


def _bind(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Call:
    return lambda: matmul(a, b, out, constant_b=True)


#: A with so many times fewer rows than B is a small part of what is read, and left out where it has at most
#: so many: all cases of one weight then share a probe.
_FEW_ROWS, _FEWER = 64, 32


def _read_bytes(case: BenchCase) -> int:
    """Bytes any kernel must read: both operands, or B alone where A has few rows."""
    few = case.m <= _FEW_ROWS and case.m * _FEWER <= case.n
    rows = case.n + (0 if few else case.m)
    return case.batch * case.k * rows * BY_NAME[case.dtype].bytes


def _describe(case: BenchCase, device: Device) -> tuple[str, str, str]:
    """(profile, kernel, plan in words) of the call."""
    plan = launch.planned(operands.problem(case), device)
    profile = launch.selection_of(device).profile
    return profile.name, plan.kernel.symbol(profile.arch), plan.explain()


def find_device(name: str) -> Device:
    """The hal device of a torch device string. Raises BackendUnavailableError, ValueError."""
    try:
        return launch.device_of(torch.device(name))
    except RuntimeError as error:
        if isinstance(error, PortaGemmError):
            raise
        raise ValueError(f"device: given {name!r}; allowed: a torch device such as cpu or cuda:0") from error
