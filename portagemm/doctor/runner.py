"""Runs checks: in the order of their dependencies, each under a time limit, never with a traceback."""

from __future__ import annotations

import fnmatch
import queue
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from portagemm.doctor.check import Check, Context, Options, Result, Status, all_checks
from portagemm.doctor.host import Host

#: Statuses of a dependency that let the check run.
_GOOD = (Status.PASS, Status.INFO, Status.WARN)
DEFAULT_CLASSES = ("passive", "process")


class SelectionError(ValueError):
    """A filter that matches no check."""


@dataclass(frozen=True)
class Outcome:
    """A check that ran, or was skipped."""

    check: Check
    result: Result


def select(
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    classes: Collection[str] = DEFAULT_CLASSES,
    checks: Mapping[str, Check] | None = None,
) -> list[Check]:
    """The checks to run, dependencies first.

    only, skip: globs over ids ("wsl.*"); a group's name alone is all of it. What `only` picks brings along
    what it needs; `skip` wins. Picking a check by its full id brings its probe class along.

    Raises SelectionError where a glob matches nothing.
    """
    known = all_checks() if checks is None else checks
    runnable = {item.id: item for item in known.values() if item.probe != "compare"}
    wanted: set[str] = set()
    for pattern in only:
        matched = _matching(pattern, runnable)
        if not matched:
            raise SelectionError(f"no check matches {pattern!r}; see --list-checks")
        wanted |= {name for name in matched if runnable[name].probe in classes or name == pattern}
        if not wanted:
            raise SelectionError(f"all that {pattern!r} matches needs --gpu or --smoke")
    if not only:
        wanted = {name for name, item in runnable.items() if item.probe in classes}
    else:
        waiting = list(wanted)
        while waiting:
            for other in runnable[waiting.pop()].needs:
                if other in runnable and other not in wanted:
                    wanted.add(other)
                    waiting.append(other)
    for pattern in skip:
        matched = _matching(pattern, known)
        if not matched:
            raise SelectionError(f"no check matches {pattern!r}; see --list-checks")
        wanted -= matched
    if not wanted:
        raise SelectionError("no check is left to run")
    return _ordered([item for name, item in runnable.items() if name in wanted])


def _matching(pattern: str, checks: Iterable[str]) -> set[str]:
    return {name for name in checks if fnmatch.fnmatchcase(name, pattern) or name.startswith(pattern + ".")}


def _ordered(checks: Sequence[Check]) -> list[Check]:
    """Dependencies first, else as given. Raises ValueError for a cycle."""
    by_id = {item.id: item for item in checks}
    done: dict[str, Check] = {}
    open_ids: list[str] = []

    def visit(item: Check) -> None:
        if item.id in done:
            return
        if item.id in open_ids:
            raise ValueError(f"checks depend on each other: {' -> '.join([*open_ids, item.id])}")
        open_ids.append(item.id)
        for other in (*item.needs, *item.after):
            if other in by_id:
                visit(by_id[other])
        open_ids.pop()
        done[item.id] = item

    for item in checks:
        visit(item)
    return list(done.values())


def run_checks(
    host: Host,
    checks: Sequence[Check],
    options: Options | None = None,
    started: Callable[[Check], None] | None = None,
) -> list[Outcome]:
    """Run `checks` (ordered by `select`) on a host and return the outcomes in the order of the report.

    started: told of each check before it runs.
    """
    results: dict[str, Result] = {}
    context = Context(host, options or Options(), results)
    worker = _Worker()
    for item in checks:
        blocked = _blocked(item, results)
        if blocked is not None:
            results[item.id] = blocked
            continue
        if started is not None:
            started(item)
        start = time.monotonic()
        result = worker.run(item, context)
        if result is None:
            worker = _Worker()  # the old one hangs; it is a daemon thread and dies with the process
            result = Result(Status.ERR, f"no answer within {item.timeout:g} s; something it reads hangs")
        results[item.id] = replace(result, seconds=round(time.monotonic() - start, 3))
    worker.close()
    order = {check_id: number for number, check_id in enumerate(all_checks())}
    ordered = sorted(checks, key=lambda item: order.get(item.id, len(order)))
    return [Outcome(item, results[item.id]) for item in ordered]


def _blocked(item: Check, results: Mapping[str, Result]) -> Result | None:
    """A SKIP if a check this one needs did not pass. One that was deselected does not count."""
    for other in item.needs:
        result = results.get(other)
        if result is None or result.status in _GOOD:
            continue
        if result.status is Status.SKIP:
            # Does not apply, for the same reason; or waits for the same failure, which "because" names.
            because = {"because": result.data["because"]} if "because" in result.data else {}
            return Result(Status.SKIP, result.message, data=because)
        return Result(Status.SKIP, f"needs {other}, which did not pass", data={"because": other})
    return None


class _Worker:
    """A thread that runs one check after the other, so that one that hangs can be left behind."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Check, Context] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Result] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="portagemm-doctor", daemon=True).start()

    def run(self, item: Check, context: Context) -> Result | None:
        """The result, or None if it took too long (this worker is of no more use then)."""
        self._tasks.put((item, context))
        try:
            return self._done.get(timeout=item.timeout)
        except queue.Empty:
            self._tasks.put(None)
            return None

    def close(self) -> None:
        """End the thread once it is idle."""
        self._tasks.put(None)

    def _loop(self) -> None:
        while (task := self._tasks.get()) is not None:
            item, context = task
            self._done.put(_guarded(item, context))


def _guarded(item: Check, context: Context) -> Result:
    """A check that raises is a fault of ours: ERR, with where it happened."""
    try:
        result = item.function(context)
        if not isinstance(result, Result):
            raise TypeError(f"returned {type(result).__name__}, not Result")
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if isinstance(error, ValueError) and str(error).startswith(
            "Exceeds the limit"
        ):  # of int(), since 3.10.7
            return Result(Status.ERR, "something it reads holds a number of thousands of digits")
        where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        message = f"this check itself failed: {type(error).__name__}: {error}".splitlines()[0]
        return Result(Status.ERR, message, details=(f"at {where}; please report it",))
    return result
