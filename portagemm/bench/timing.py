"""Timers. All calls of one measurement take turns, so that clocks and heat touch them alike.

"alone": one call between two events (on the CPU: two clock reads), the last-level cache flushed before each.
"chain": many calls over rotating weights captured in one graph, the graph's time over the number of calls.
Both return medians in microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch

Call = Callable[[], object]

#: Least bytes of the flush buffer. Writing it also lets the host run ahead of the device.
_LEAST_FLUSH = 256 << 20
_SPIN_CYCLES = 400_000
#: Most calls of a chain: more only make its graph slow to capture.
MOST_IN_CHAIN = 256


@dataclass(frozen=True)
class Effort:
    """How long to measure: about `seconds` for all calls together, each `least` to `most` times."""

    seconds: float = 0.3
    least: int = 7
    most: int = 60

    def rounds(self, seconds_a_round: float) -> int:
        """Rounds that fit."""
        return max(self.least, min(self.most, int(self.seconds / max(seconds_a_round, 1e-9))))


class Timer(Protocol):
    """Times calls on one device."""

    def alone(self, calls: Mapping[str, Call], effort: Effort) -> dict[str, float]:
        """Median microseconds of each call, cache flushed before each."""

    def chain(self, calls: Mapping[str, Sequence[Call]], effort: Effort) -> dict[str, float]:
        """Median microseconds per call of each sequence, run back to back."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""


class DeviceTimer:
    """Times with the device's own events. For CUDA and ROCm builds of torch.

    Attributes:
        while_busy: called once a measurement while work is queued (reads the clock).
    """

    def __init__(self, device: str, l2_bytes: int = 0, while_busy: Call | None = None) -> None:
        self._device = torch.device(device)
        self._flush = torch.empty(
            max(4 * l2_bytes, _LEAST_FLUSH) // 4, dtype=torch.float32, device=self._device
        )
        self.while_busy = while_busy

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def alone(self, calls: Mapping[str, Call], effort: Effort) -> dict[str, float]:
        with self._on_device():
            once = self._rounds(calls, 2, flush=True)
            rounds = effort.rounds(sum(times[-1] for times in once.values()) / 1e6)
            return {name: median(times) for name, times in self._rounds(calls, rounds, flush=True).items()}

    def chain(self, calls: Mapping[str, Sequence[Call]], effort: Effort) -> dict[str, float]:
        with self._on_device():
            graphs = {name: self._capture(sequence) for name, sequence in calls.items()}
            replays: dict[str, Call] = {name: graph.replay for name, graph in graphs.items()}
            once = self._rounds(replays, 2, flush=False)
            rounds = effort.rounds(sum(times[-1] for times in once.values()) / 1e6)
            times = self._rounds(replays, rounds, flush=False)
            return {name: median(times[name]) / len(calls[name]) for name in calls}

    def _on_device(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self._device) if self._device.index is not None else nullcontext()

    def _capture(self, sequence: Sequence[Call]) -> torch.cuda.CUDAGraph:
        sequence[0]()  # kernels loaded, workspaces there
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in sequence:
                call()
        return graph

    def _rounds(self, calls: Mapping[str, Call], rounds: int, flush: bool) -> dict[str, list[float]]:
        """Microseconds of `rounds` turns. All are queued before the first is waited for, so that the events
        never see the host's own cost."""
        names = list(calls)
        events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in names}
        self.synchronize()
        torch.cuda._sleep(_SPIN_CYCLES)
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                start, stop = _event(), _event()
                if flush:
                    self._flush.fill_(float(turn))
                start.record()
                calls[name]()
                stop.record()
                events[name].append((start, stop))
        if self.while_busy is not None:
            self.while_busy()
        self.synchronize()
        return {name: [1e3 * a.elapsed_time(b) for a, b in pairs] for name, pairs in events.items()}


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


class HostTimer:
    """Times work that is done when the call returns."""

    def __init__(self, l2_bytes: int = 0) -> None:
        self._flush = torch.empty(max(2 * l2_bytes, 64 << 20) // 4, dtype=torch.float32)

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def alone(self, calls: Mapping[str, Call], effort: Effort) -> dict[str, float]:
        once = self._rounds(calls, 2)
        rounds = effort.rounds(sum(times[-1] for times in once.values()) / 1e6)
        return {name: median(times) for name, times in self._rounds(calls, rounds).items()}

    def chain(self, calls: Mapping[str, Sequence[Call]], effort: Effort) -> dict[str, float]:
        def run(sequence: Sequence[Call]) -> Call:
            return lambda: [call() for call in sequence]

        whole = self.alone({name: run(sequence) for name, sequence in calls.items()}, effort)
        return {name: us / len(calls[name]) for name, us in whole.items()}

    def _rounds(self, calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
        names = list(calls)
        times: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                self._flush.fill_(float(turn))
                start = time.perf_counter()
                calls[name]()
                times[name].append(1e6 * (time.perf_counter() - start))
        return times


def make_timer(device: str, l2_bytes: int = 0, while_busy: Call | None = None) -> Timer:
    """The timer for a torch device string."""
    return HostTimer(l2_bytes) if device == "cpu" else DeviceTimer(device, l2_bytes, while_busy)


def host_cost(
    calls: Mapping[str, Callable[[int], object]], timer: Timer, count: int = 10_000
) -> dict[str, float]:
    """Microseconds the host spends on one call: the median over blocks of `count` // 20 calls, taking turns.

    Each call gets a running number, to choose other operands each time. The device is idle when a block
    starts and is waited for after its time is taken.
    """
    size = max(count // 20, 1)
    costs: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for number in range(min(size, 50)):
            call(number)
    for block in range(20):
        for name, call in calls.items():
            timer.synchronize()
            start = time.perf_counter()
            for number in range(block * size, (block + 1) * size):
                call(number)
            costs[name].append(1e6 * (time.perf_counter() - start) / size)
    timer.synchronize()
    return {name: median(values) for name, values in costs.items()}
