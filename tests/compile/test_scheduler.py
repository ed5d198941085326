"""The work scheduler and batch offsets, run on the host for every block of a grid: each tile once, in bands."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

pytestmark = pytest.mark.quick

SCHEDULER = "portagemm/scheduler.hpp"

_WALK = """
struct tile { static constexpr i32 m = 16, n = 8, k = 4; };
// Work of all blocks, each as {block, batch, m, n, k_begin, k_end}.
template <int Cluster, int Split>
void walk(const char* name, i32 tiles_m, i32 tiles_n, i64 batches, i32 raster, i64 grid, i32 k) {
    gemm_params p{};
    p.tiles_m = tiles_m;
    p.tiles_n = tiles_n;
    p.tiles = batches * tiles_m * tiles_n;
    p.raster = raster;
    p.k = k;
    std::vector<i64> all;
    vendor::blocks_now = grid;
    for (vendor::block_now = 0; vendor::block_now < grid; vendor::block_now++) {
        vendor::rank_now = vendor::block_now % (Cluster * Split);
        tile_scheduler<tile, Cluster, Split> scheduler(p);
        work w;
        while (scheduler.pop(w)) {
            const i64 fields[] = {vendor::block_now, w.batch, w.m, w.n, w.k_begin, w.k_end};
            all.insert(all.end(), fields, fields + 6);
        }
    }
    entry(name, all);
}
"""

#: tiles_m (of a cluster), tiles_n, batches, raster, clusters of the grid
GRIDS = [
    (1, 1, 1, 1, 1),
    (5, 7, 1, 3, 4),
    (5, 7, 3, 3, 105),
    (8, 3, 2, 16, 5),
    (9, 4, 1, 4, 7),
    (3, 1, 6, 1, 2),
    (2, 2, 1, 8, 9),
]


def walks(host_check: Any, cluster: int, split: int, k: int) -> dict[str, list[tuple[int, ...]]]:
    calls = "".join(
        f'walk<{cluster}, {split}>("{grid}", {", ".join(map(str, grid[:4]))}, {grid[4] * cluster * split}, {k});\n'
        for grid in GRIDS
    )
    found = host_check.run([SCHEDULER], f"{_WALK} void check() {{ {calls} }}")
    return {name: list(zip(*[iter(values)] * 6, strict=True)) for name, values in found.items()}


@pytest.mark.parametrize("cluster", [1, 2])
def test_each_tile_once(host_check: Any, cluster: int) -> None:
    found = walks(host_check, cluster, 1, 40)
    for grid in GRIDS:
        tiles_m, tiles_n, batches, _, clusters = grid
        work = found[str(grid)]
        places = sorted((batch, m, n) for _, batch, m, n, _, _ in work)
        rows = range(0, tiles_m * cluster * 16, 16)
        assert places == list(itertools.product(range(batches), rows, range(0, tiles_n * 8, 8))), grid
        assert {(begin, end) for *_, begin, end in work} == {(0, 40)}
        # A cluster's blocks take neighbours along M, and every block as much as any other, but for the last round.
        counts = [sum(w[0] == block for w in work) for block in range(clusters * cluster)]
        assert max(counts) - min(counts) <= 1
        for block, _, m, _, _, _ in work:
            assert m // 16 % cluster == block % cluster


def test_bands(host_check: Any) -> None:
    """One block alone walks `raster` rows of tiles column by column, then the next rows."""
    call = 'walk<1, 1>("walk", 5, 3, 1, 2, 1, 4);'
    found = host_check.run([SCHEDULER], f"{_WALK} void check() {{ {call} }}")["walk"]
    order = [(m // 16, n // 8) for _, _, m, n, _, _ in zip(*[iter(found)] * 6, strict=True)]
    bands = [range(2), range(2, 4), range(4, 5)]
    assert order == [(m, n) for band in bands for n in range(3) for m in band]


@pytest.mark.parametrize(("split", "k"), [(2, 40), (2, 4), (4, 40), (4, 41), (4, 3), (2, 0)])
def test_split_k(host_check: Any, split: int, k: int) -> None:
    """The blocks of a cluster share one tile's K: their parts follow each other, none is left out or taken twice."""
    for grid, work in walks(host_check, 1, split, k).items():
        tiles: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for _, batch, m, n, begin, end in work:
            tiles.setdefault((batch, m, n), []).append((begin, end))
        for parts in tiles.values():
            assert len(parts) == split, grid
            ordered = sorted(parts)
            assert ordered[0][0] == 0 and ordered[-1][1] == k
            assert all(first[1] == second[0] for first, second in itertools.pairwise(ordered))
            assert all(begin % 4 == 0 or begin == k for begin, _ in ordered), "parts begin at steps of K"


def test_large_batches(host_check: Any) -> None:
    """As many tiles as 32 bits count (the planner refuses more): places stay right (no block walks them all here)."""
    text = f"""
    {_WALK}
    void check() {{
        gemm_params p{{}};
        p.tiles_m = 1 << 15;
        p.tiles_n = (1 << 5) - 1;
        p.tiles = i64(p.tiles_m) * p.tiles_n * 4228;
        p.raster = 16;
        vendor::blocks_now = 132;
        vendor::block_now = 5;
        tile_scheduler<tile, 1, 1> s(p);
        s.next = p.tiles - 1;
        work w;
        const bool got = s.pop(w), more = s.pop(w);
        entry("work", std::vector<i64>{{got, more, w.batch, w.m, w.n}});
    }}
    """
    assert host_check.run([SCHEDULER], text)["work"] == [
        1,
        0,
        4227,
        ((1 << 15) - 1) * 16,
        ((1 << 5) - 2) * 8,
    ]


def test_batch_offsets(host_check: Any) -> None:
    """A linear batch index is taken apart from the innermost extent on; an extent of 1 is not looked at."""
    extents, strides = (3, 1, 5, 2), (1 << 40, 999, 1 << 20, 7)
    text = f"""
    void check() {{
        gemm_params p{{}};
        operand o{{}};
        const i32 extents[] = {{{", ".join(map(str, extents))}}};
        const i64 strides[] = {{{", ".join(f"{s}LL" for s in strides)}}};
        for (i32 i = 0; i < 4; i++) {{ p.batch[i] = extents[i]; o.batch[i] = strides[i]; }}
        std::vector<i64> offsets;
        for (i64 b = 0; b < 30; b++) offsets.push_back(batch_offset(o, p, b));
        entry("offsets", offsets);
    }}
    """
    want = [
        a * strides[0] + c * strides[2] + d * strides[3] for a in range(3) for c in range(5) for d in range(2)
    ]
    assert host_check.run([SCHEDULER], text)["offsets"] == want
