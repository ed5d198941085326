"""The measured search: which of the planner's candidates is fastest for a case on this device.

Every candidate runs once and is compared with the model's choice, so that a wrong kernel never wins. Then they
race: all take turns, the slow ones drop out early, the walk through the tiles (raster) is varied for the
leaders, and those that are left are timed like any result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

import torch

from portagemm import launch, tuning
from portagemm import plan as planner
from portagemm.hal.device import Device
from portagemm.hal.errors import PortaGemmError
from portagemm.hal.source import KernelSource
from portagemm.plan import GemmPlan
from portagemm.prebuild import Built, compile_all
from portagemm.tuning import Entry, Measured

from . import operands
from .suites import BenchCase
from .timing import MOST_IN_CHAIN, Call, Effort, Timer

#: Rounds of the race: (effort, what may be so many times slower than the leader and stay, how many stay).
_HEATS: tuple[tuple[Effort, float, int], ...] = (
    (Effort(seconds=0.02, least=2, most=4), 1.5, 12),
    (Effort(seconds=0.10, least=5, most=15), 1.15, 5),
)
#: How many leaders are tried with other rasters, and with which multiples of the planned one.
_RASTER_LEADERS, _RASTER_FACTORS = 2, (0.5, 2.0, 4.0)
#: The model's choice stays if nothing is faster by more than this: differences below are noise.
_NOISE = 1.005
#: Largest deviation between two kernels' results, relative to the largest element: bf16 rounds at 2^-9.
_AGREEMENT = 2.0**-6


@dataclass(frozen=True)
class Result:
    """What a search found.

    Attributes:
        plan, us: the fastest plan and its time in microseconds (of several timings: their geometric mean).
        heuristic, heuristic_us: the model's choice. runner_up, runner_up_us: the best of another tile, or None.
        tried: plans that were timed. failed: (plan, why) of those that could not be, or gave wrong numbers.
    """

    plan: GemmPlan
    us: float
    heuristic: GemmPlan
    heuristic_us: float
    runner_up: GemmPlan | None = None
    runner_up_us: float = 0.0
    tried: int = 0
    failed: tuple[tuple[str, str], ...] = ()

    def entry(self, device: Device) -> Entry:
        """The result as an entry of a tuning table."""

        def measured(plan: GemmPlan, us: float) -> Measured:
            return Measured(planner.name_of(plan), plan.raster, us)

        return Entry(
            best=measured(self.plan, self.us),
            runner_up=None if self.runner_up is None else measured(self.runner_up, self.runner_up_us),
            heuristic=measured(self.heuristic, self.heuristic_us),
            sources=tuning.sources_digest(device.backend),
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )


@dataclass
class Search:
    """A search on one device.

    Attributes:
        timer: as the benchmarks use it. effort: of the last heat.
        budget: seconds a case; when they are spent no further candidate joins the race. None: no limit.
        chain_bytes: weights that a chain rotates over.
    """

    device: Device
    timer: Timer
    effort: Effort = field(default_factory=Effort)
    budget: float | None = None
    chain_bytes: int = 1 << 30
    weights: operands.Weights = field(default_factory=operands.Weights)

    def __call__(
        self,
        case: BenchCase,
        tensors: operands.Operands | None = None,
        seen: Callable[[str], None] = lambda text: None,
    ) -> Result:
        """Search for a case. `seen` gets a word on what goes on.

        Raises UnsupportedError where no kernel takes the case, and what compiling or launching the model's
        choice raises.
        """
        return _Race(self, case, tensors, seen).run()


class _Race:
    """The state of one search."""

    def __init__(
        self,
        search: Search,
        case: BenchCase,
        tensors: operands.Operands | None,
        seen: Callable[[str], None],
    ) -> None:
        self.search, self.case, self.seen = search, case, seen
        self.problem = operands.problem(case)
        self.tensors = tensors or operands.make(case, search.device.torch_device)
        self.out = torch.empty_like(self.tensors.out)
        self.failed: list[tuple[str, str]] = []
        self.times: dict[GemmPlan, float] = {}
        self.started = time.monotonic()

    def run(self) -> Result:
        profile = launch.selection_of(self.search.device).profile
        heuristic = planner.plan(self.problem, profile, self.search.device, use_tables=False)
        others = sorted(
            planner.candidates(self.problem, profile, self.search.device), key=lambda plan: plan.cost
        )
        field_ = self._entrants(heuristic, [plan for plan in others if plan != heuristic])
        for effort, slower, most in _HEATS:
            self.seen(f"{len(field_)} plans")
            self.times.update(self._alone(field_, effort))
            field_ = self._leaders(field_, slower, most)
        field_ = [*field_, *self._rasters(field_)]
        if heuristic not in field_:
            field_.append(heuristic)
        self.seen(f"{len(field_)} finalists")
        final = self._final(field_)
        ranking = sorted(final, key=lambda plan: final[plan])
        best = ranking[0]
        if final[heuristic] <= final[best] * _NOISE:
            best = heuristic
        second = next((p for p in ranking if planner.name_of(p) != planner.name_of(best)), None)
        return Result(
            best,
            final[best],
            heuristic,
            final[heuristic],
            second,
            final[second] if second is not None else 0.0,
            len(self.times),
            tuple(self.failed),
        )

    def _entrants(self, heuristic: GemmPlan, others: Sequence[GemmPlan]) -> list[GemmPlan]:
        """The model's choice and every other plan that runs and agrees with it."""
        self._call(heuristic)()
        reference = self.out.float()
        largest = float(reference.abs().max()) or 1.0
        field_ = [heuristic]
        for number, plan in enumerate(others):
            budget = self.search.budget
            if budget is not None and time.monotonic() - self.started > budget:
                break
            self.seen(f"plan {number + 1} of {len(others)}")
            try:
                self.out.fill_(float("nan"))
                self._call(plan)()
                deviation = float((self.out.float() - reference).abs().max()) / largest
            except PortaGemmError as error:
                self.failed.append((plan.explain(), f"{type(error).__name__}: {str(error)[:300]}"))
                continue
            if not deviation <= _AGREEMENT:
                self.failed.append(
                    (plan.explain(), f"wrong numbers: {deviation:.3g} from {heuristic.explain()}")
                )
                continue
            field_.append(plan)
        return field_

    def _call(self, plan: GemmPlan) -> Call:
        prepared = launch.launcher(self.problem, self.search.device, plan)
        a, b, out = self.tensors.a.data_ptr(), self.tensors.b.data_ptr(), self.out.data_ptr()
        return lambda: prepared(a, b, 0, out, 0)

    def _alone(self, field_: Iterable[GemmPlan], effort: Effort) -> dict[GemmPlan, float]:
        plans = list(field_)
        calls = {str(i): self._call(plan) for i, plan in enumerate(plans)}
        times = self.search.timer.alone(calls, effort)
        return {plan: times[str(i)] for i, plan in enumerate(plans)}

    def _leaders(self, field_: Sequence[GemmPlan], slower: float, most: int) -> list[GemmPlan]:
        ranking = sorted(field_, key=lambda plan: self.times[plan])
        limit = self.times[ranking[0]] * slower
        return [plan for plan in ranking[:most] if self.times[plan] <= limit]

    def _rasters(self, leaders: Sequence[GemmPlan]) -> list[GemmPlan]:
        """The first leaders with other rasters; one that covers all rows of tiles is one as large as they."""
        found: list[GemmPlan] = []
        for plan in leaders[:_RASTER_LEADERS]:
            rows = plan.tiles_m
            known = {min(plan.raster, rows)}
            for factor in _RASTER_FACTORS:
                raster = min(max(int(plan.raster * factor), 1), rows)
                if raster not in known:
                    known.add(raster)
                    found.append(replace(plan, raster=raster))
        return found

    def _final(self, field_: Sequence[GemmPlan]) -> dict[GemmPlan, float]:
        """Times of the finalists: over the case's timings their geometric mean."""
        found = dict.fromkeys(field_, 1.0)
        timings = self.case.timings
        for timing in timings:
            one = self._alone(field_, self.search.effort) if timing == "alone" else self._chain(field_)
            for plan, us in one.items():
                self.times[plan] = us
                found[plan] *= us ** (1 / len(timings))
        return found

    def _chain(self, field_: Sequence[GemmPlan]) -> dict[GemmPlan, float]:
        """Times in a graph of calls over rotating weights that nothing writes, as inference runs them."""
        search = self.search
        weights = search.weights(self.case, search.device.torch_device, search.chain_bytes, MOST_IN_CHAIN)
        problem = replace(self.problem, constant_b=not self.problem.swapped)
        a, out = self.tensors.a.data_ptr(), self.out.data_ptr()

        def calls(plan: GemmPlan) -> list[Call]:
            prepared = launch.launcher(problem, self.search.device, plan)

            def bind(pointer: int) -> Call:
                return lambda: prepared(a, pointer, 0, out, 0)

            return [bind(b.data_ptr()) for b in weights]

        times = self.search.timer.chain({str(i): calls(p) for i, p in enumerate(field_)}, self.search.effort)
        return {plan: times[str(i)] for i, plan in enumerate(field_)}


def sources(cases: Iterable[BenchCase], device: Device) -> list[KernelSource]:
    """The kernels a search over the cases needs, each once: to be compiled beforehand on all cores."""
    selection = launch.selection_of(device)
    found: dict[str, KernelSource] = {}
    for case in cases:
        for plan in planner.candidates(operands.problem(case), selection.profile, device):
            for kernel in plan.kernels:
                source = planner.kernel_source(kernel, selection.profile, selection.target)
                found.setdefault(source.text, source)
    return list(found.values())


def compile_missing(
    cases: Iterable[BenchCase], device: Device, jobs: int, seen: Callable[[int, int], None]
) -> list[Built]:
    """Compile what a search over the cases needs and is not at hand, `jobs` at a time; those that failed.

    `seen` gets how many of how many are done. A kernel that fails here is left out of the race later.
    """
    missing = [source for source in sources(cases, device) if launch.at_hand(source) is None]
    failed = []
    for number, built in enumerate(compile_all(missing, min(jobs, max(len(missing), 1))), 1):
        seen(number, len(missing))
        if built.code is None:
            failed.append(built)
    return failed
