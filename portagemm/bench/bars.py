"""The figures a suite must reach, and whether a run reached them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .report import Row, geometric_mean


def _torch(row: Row) -> float | None:
    return row.ratio()


def _best(row: Row) -> float | None:
    """The speed of the call relative to the fastest plan there is."""
    return row.best_us / row.us if row.best_us and row.us and row.error is None else None


def _read(row: Row) -> float | None:
    return row.us / row.read_us if row.us and row.read_us and row.error is None else None


def _host(row: Row) -> float | None:
    torch_us = row.peers_host_us.get("torch")
    return row.host_us / torch_us if row.host_us and torch_us else None


def _rate(row: Row) -> float | None:
    return row.tflops if row.error is None else None


#: A figure of a row, and how it is called.
_RATIOS: dict[str, Callable[[Row], float | None]] = {
    "speed relative to torch": _torch,
    "speed relative to the fastest plan": _best,
    "time relative to the read-only probe": _read,
    "host cost relative to torch": _host,
    "TFLOP/s": _rate,
}
_OVER: dict[str, Callable[[Sequence[float]], float]] = {
    "geometric mean": lambda values: geometric_mean(values) or 0.0,
    "lowest": min,
    "highest": max,
}


@dataclass(frozen=True)
class Bar:
    """One figure: `over` the rows of a suite with this timing ("" any) and so many rows of A, `ratio`.

    Attributes:
        least, most: what it must reach or must not pass; both None: reported only.
    """

    suite: str
    timing: str
    over: str
    ratio: str
    least: float | None = None
    most: float | None = None
    rows: tuple[int, int] = (1, 1 << 31)

    def figure(self, rows: Sequence[Row]) -> float | None:
        """The figure of a run, None where nothing of it was measured."""
        chosen = [
            value
            for row in rows
            if row.timing == (self.timing or row.timing) and self.rows[0] <= row.m <= self.rows[1]
            if (value := _RATIOS[self.ratio](row)) is not None
        ]
        return _OVER[self.over](chosen) if chosen else None

    def met(self, figure: float) -> bool:
        """Whether a figure reaches the bar."""
        return (self.least is None or figure >= self.least) and (self.most is None or figure <= self.most)

    def __str__(self) -> str:
        low, high = self.rows
        where = "" if high == 1 << 31 else f", M <= {high}" if low == 1 else f", M {low} to {high}"
        return f"{self.suite}{', ' + self.timing if self.timing else ''}{where}: {self.over} {self.ratio}"


_FEW, _MORE = (1, 16), (17, 64)
BARS: tuple[Bar, ...] = (
    Bar("dense16", "alone", "geometric mean", "speed relative to torch", least=1.03),
    Bar("dense16", "alone", "lowest", "speed relative to torch", least=0.97),
    Bar("dense16", "chain", "geometric mean", "speed relative to torch", least=1.03),
    Bar("dense16", "chain", "lowest", "speed relative to torch", least=0.97),
    Bar("layouts16", "alone", "geometric mean", "speed relative to torch"),
    Bar("layouts16", "alone", "lowest", "speed relative to torch", least=0.95),
    Bar("decode16", "chain", "geometric mean", "speed relative to torch", least=1.15, rows=_FEW),
    Bar("decode16", "chain", "lowest", "speed relative to torch", least=0.97, rows=_FEW),
    Bar("decode16", "chain", "lowest", "speed relative to torch", least=0.95, rows=_MORE),
    Bar("decode16", "alone", "lowest", "speed relative to torch", least=0.98, rows=_FEW),
    Bar("decode16", "alone", "highest", "time relative to the read-only probe", most=1.08, rows=_FEW),
    Bar("random", "alone", "geometric mean", "speed relative to torch", least=0.95),
    Bar("random", "alone", "lowest", "speed relative to torch", least=0.6),
    Bar("random", "alone", "geometric mean", "speed relative to the fastest plan", least=0.93),
    Bar("random", "alone", "lowest", "speed relative to the fastest plan"),
    Bar("mma_sync16", "alone", "highest", "TFLOP/s"),
    *(
        Bar(suite, "", "highest", "host cost relative to torch", most=1.5)
        for suite in ("dense16", "layouts16", "decode16", "random")
    ),
)


def bar_lines(suite: str, rows: Sequence[Row]) -> list[str]:
    """A line for each bar of the suite that this run says something about."""
    lines = []
    for bar in BARS:
        figure = bar.figure(rows) if bar.suite == suite else None
        if figure is None:
            continue
        verdict = ""
        if bar.least is not None or bar.most is not None:
            bound = f"<= {bar.most:g}" if bar.least is None else f">= {bar.least:g}"
            verdict = f" ({bound}: {'met' if bar.met(figure) else 'MISSED'})"
        lines.append(f"bar {bar}: {figure:.3f}{verdict}")
    return lines
