"""Each kind of fault in a kernel of a few lines, and the same kernel without it."""

from __future__ import annotations

import numpy as np
import pytest
from gcn.faults import (
    Endless,
    Fault,
    LdsRace,
    MissedBarrier,
    MissingWait,
    NotModelled,
    OutOfRange,
    UninitialisedRegister,
    UnwrittenLds,
)
from gcn.lds import conflicts, phases
from gcn.machine import Machine
from gcn.waves import Transfer, retire
from tiny import PROLOGUE, Run, kernel

pytestmark = pytest.mark.quick

STORE = "global_store_dword v2, v9, s[4:5]\n"
LOAD = "global_load_dword v9, v2, s[4:5] offset:2048\n"
WAIT = "s_waitcnt vmcnt(0)\n"


def test_a_kernel_runs() -> None:
    """Two work-groups of two waves, threads in order."""
    text = PROLOGUE + "s_lshl_b32 s3, s2, 9\nv_add_u32_e32 v2, s3, v2\nv_mov_b32_e32 v9, v2\n" + STORE
    run = Run(kernel(text), grid=2)
    assert np.array_equal(run.out[:256], np.arange(256) * 4)
    assert run.machine.executed == 4 * 8


def test_lanes_beyond_the_block() -> None:
    run = Run(kernel(PROLOGUE + "v_mov_b32_e32 v9, 7\n" + STORE), block=70)
    assert (run.out[:70] == 7).all() and not run.out[70:].any()


# --- waits -----------------------------------------------------------------------------------------------

USE = "v_add_u32_e32 v10, v9, v9\n"
OTHER = "global_load_dword v11, v2, s[4:5] offset:3072\n"
FLAT = """
v_mov_b32_e32 v5, s5
v_add_co_u32_e32 v4, vcc, s4, v2
v_addc_co_u32_e32 v5, vcc, 0, v5, vcc
flat_load_dword v9, v[4:5]
"""
LDS = "ds_write_b32 v2, v0\ns_waitcnt lgkmcnt(0)\nds_read_b32 v9, v2\n"
#: name -> (lines after the prologue, whether they are right).
WAITS = {
    "read": (LOAD + USE, False),
    "read after the wait": (LOAD + WAIT + USE, True),
    "stored": (LOAD + STORE, False),
    "overwritten": (LOAD + "v_mov_b32_e32 v9, 0\n", False),
    "waits for the other counter": (LOAD + "s_waitcnt lgkmcnt(0)\n" + USE, False),
    "one may remain, the later one": (LOAD + OTHER + "s_waitcnt vmcnt(1)\n" + USE, True),
    "one may remain, this one": (OTHER + LOAD + "s_waitcnt vmcnt(1)\n" + USE, False),
    "a store counts": (
        LOAD + "v_mov_b32_e32 v12, 0\nglobal_store_dword v2, v12, s[4:5]\ns_waitcnt vmcnt(1)\n" + USE,
        True,
    ),
    "loaded twice in order": (LOAD + LOAD + "s_waitcnt vmcnt(1)\n" + USE, False),
    "loaded twice, both waited for": (LOAD + LOAD + WAIT + USE, True),
    "loaded by different units": (LOAD + LDS, False),
    "address may change at once": (LOAD + "v_mov_b32_e32 v2, 0\n", True),
    "scalar loads have no order": (
        "s_load_dword s6, s[0:1], 0x0\ns_load_dword s7, s[0:1], 0x4\ns_waitcnt lgkmcnt(1)\ns_mov_b32 s8, s6\n",
        False,
    ),
    "scalar loads, all": (
        "s_load_dword s6, s[0:1], 0x0\ns_load_dword s7, s[0:1], 0x4\ns_waitcnt lgkmcnt(0)\ns_mov_b32 s8, s6\n",
        True,
    ),
    "LDS": (LDS + USE, False),
    "LDS waited for": (LDS + "s_waitcnt lgkmcnt(0)\n" + USE, True),
    "LDS before a scalar load": (LDS + "s_load_dword s6, s[0:1], 0x0\ns_waitcnt lgkmcnt(1)\n" + USE, False),
    "flat, one counter": (FLAT + WAIT + USE, False),
    "flat, the other": (FLAT + "s_waitcnt lgkmcnt(0)\n" + USE, False),
    "flat, both": (FLAT + "s_waitcnt vmcnt(0) lgkmcnt(0)\n" + USE, True),
    "flat has no order": (FLAT + OTHER + "s_waitcnt vmcnt(1) lgkmcnt(0)\n" + USE, False),
    "branch on it": (LOAD + "v_cmp_eq_u32_e32 vcc, 0, v9\ns_cbranch_vccz end\nend:\n", False),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits(name: str) -> None:
    lines, right = WAITS[name]
    program = kernel(PROLOGUE + lines)
    if right:
        Run(program)
    else:
        with pytest.raises(MissingWait, match="while a load into it is in flight"):
            Run(program)


def test_stores_count_apart_on_gfx11() -> None:
    """There vmcnt is of loads alone."""
    start = "s_load_b64 s[4:5], s[0:1], 0x0\nv_lshlrev_b32_e32 v2, 2, v0\nv_mov_b32_e32 v12, 0\ns_waitcnt lgkmcnt(0)\n"
    load, store = "global_load_b32 v9, v2, s[4:5] offset:2048\n", "global_store_b32 v2, v12, s[4:5]\n"
    use = "v_add_nc_u32_e32 v10, v9, v9\n"
    Run(kernel(start + load + store + "s_waitcnt vmcnt(0)\n" + use, "gfx1100"))
    with pytest.raises(MissingWait):
        Run(kernel(start + load + store + "s_waitcnt vmcnt(1)\n" + use, "gfx1100"))
    with pytest.raises(MissingWait):
        Run(kernel(start + load + store + "s_waitcnt_vscnt null, 0x0\n" + use, "gfx1100"))


def test_what_a_wait_shows() -> None:
    """Classes complete in order, apart from one another."""
    queue = [Transfer("a", 1), Transfer("b", 2), Transfer("a", 4), Transfer("smem", 8)]
    assert [t.registers for t in retire(queue, 1)[1]] == [1]
    assert [t.registers for t in retire(queue, 2)[1]] == []
    assert [t.registers for t in retire(queue, 0)[1]] == [1, 2, 4, 8]


# --- registers -------------------------------------------------------------------------------------------

REGISTERS = {
    "stored": (STORE, False),
    "copied, then stored": ("v_mov_b32_e32 v9, v10\n" + STORE, False),
    "copied, never used": ("v_mov_b32_e32 v9, v10\n", True),
    "stored by no lane": ("s_mov_b64 exec, 0\n" + STORE, True),
    "an address": ("global_load_dword v9, v20, s[4:5]\n", False),
    "a branch": ("s_cmp_eq_u32 s20, 0\ns_cbranch_scc0 end\nend:\n", False),
    "EXEC": ("s_mov_b64 exec, s[20:21]\n", False),
    "SCC from nowhere": ("s_cbranch_scc0 end\nend:\n", False),
    "the upper half of a sum that is not used": (
        "v_mov_b32_e32 v10, 5\nv_mad_u64_u32 v[8:9], s[6:7], v0, v0, v[10:11]\nv_mov_b32_e32 v9, v8\n"
        + STORE,
        True,
    ),
    "the upper half of a sum": (
        "v_mov_b32_e32 v10, 5\nv_mad_u64_u32 v[8:9], s[6:7], v0, v0, v[10:11]\n" + STORE,
        False,
    ),
    "written after all": ("v_mov_b32_e32 v9, v10\nv_mov_b32_e32 v9, 0\n" + STORE, True),
    "a sum of the matrix unit": (
        "v_mfma_f32_16x16x4f32 v[8:11], v0, v0, v[12:15]\n" + STORE,
        False,
    ),
}


@pytest.mark.parametrize("name", REGISTERS)
def test_registers_never_written(name: str) -> None:
    lines, right = REGISTERS[name]
    program = kernel(PROLOGUE + lines)
    if right:
        Run(program)
    else:
        with pytest.raises(UninitialisedRegister, match="never written"):
            Run(program)


# --- LDS and barriers ------------------------------------------------------------------------------------

#: v3 = the thread's place, v4 = that of the same lane of the other wave (waves of 64, two of them).
PLACES = "v_lshlrev_b32_e32 v3, 2, v0\nv_xor_b32_e32 v4, 0x100, v3\nv_mov_b32_e32 v5, v0\n"
W, R, WR, RR = (
    "ds_write_b32 v3, v5\n",
    "ds_read_b32 v9, v3\n",
    "ds_write_b32 v4, v5\n",
    "ds_read_b32 v9, v4\n",
)
L0, B = "s_waitcnt lgkmcnt(0)\n", "s_barrier\n"
RACES = {
    "own place": (W + L0 + R + L0, None),
    "own place without a wait": (W + R + L0, None),
    "other's place": (W + L0 + RR + L0, LdsRace),
    "other's place after a barrier": (W + L0 + B + RR + L0, None),
    "write still in flight at the barrier": (W + B + RR + L0, LdsRace),
    "waited for after the barrier": (W + B + L0 + RR + L0, LdsRace),
    "waited for, and another barrier": (W + B + L0 + B + RR + L0, None),
    "write after the other's read": (W + L0 + B + RR + L0 + W + L0, LdsRace),
    "write after the other's read and a barrier": (W + L0 + B + RR + L0 + B + W + L0, None),
    "read still in flight at the barrier": (W + L0 + B + RR + B + W + L0, LdsRace),
    "both write": (W + L0 + WR + L0, LdsRace),
    "both write one place at once": ("v_and_b32_e32 v3, 0xfc, v3\n" + W + L0, LdsRace),
    "all read one place, one writes": (
        W + L0 + B + "v_mov_b32_e32 v6, 0\nds_read_b32 v9, v6\n" + L0 + W + L0,
        LdsRace,
    ),
    "never written": (R + L0, UnwrittenLds),
    "halves of a word": (
        "v_lshlrev_b32_e32 v6, 2, v0\nv_and_b32_e32 v6, 0xfc, v6\nv_lshrrev_b32_e32 v7, 6, v0\n"
        "v_lshl_add_u32 v6, v7, 1, v6\nds_write_b16 v6, v5\n" + L0,
        None,
    ),
}


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("name", RACES)
def test_races(name: str, apart: bool) -> None:
    """Found whatever the order of the waves."""
    lines, fault = RACES[name]
    program = kernel(PLACES + lines)
    for seed in range(3):
        machine = Machine(seed, apart=apart)
        if fault is None:
            Run(program, grid=2, machine=machine)
        else:
            # Where waves run one by one, the reader may come before there is anything to read.
            with pytest.raises((fault, UnwrittenLds) if apart else fault):
                Run(program, grid=2, machine=machine)


#: s6 = number of the wave.
WAVE = "v_lshrrev_b32_e32 v3, 6, v0\nv_readfirstlane_b32 s6, v3\ns_cmp_eq_u32 s6, 1\n"


def test_waves_that_miss_a_barrier() -> None:
    with pytest.raises(MissedBarrier, match="1 of 2 waves"):
        Run(kernel(WAVE + "s_cbranch_scc1 end\ns_barrier\nend:\n"))
    elsewhere = kernel(WAVE + "s_cbranch_scc1 other\ns_barrier\ns_branch end\nother:\ns_barrier\nend:\n")
    with pytest.raises(MissedBarrier, match="wait at 0x"):
        Run(elsewhere)
    machine = Machine()
    machine.staggered_barriers = True
    Run(elsewhere, machine=machine)


def test_waves_part_and_meet() -> None:
    """Each way by the waves that take it; counted by wave."""
    text = (
        PROLOGUE
        + WAVE
        + "s_cbranch_scc1 other\nv_mov_b32_e32 v9, 5\ns_branch end\nother:\nv_mov_b32_e32 v9, 6\nend:\n"
    )
    for apart in (False, True):
        run = Run(kernel(text + STORE), machine=Machine(1, apart=apart))
        assert (run.out[:64] == 5).all() and (run.out[64:128] == 6).all()


def test_loops_of_different_length() -> None:
    text = PROLOGUE + WAVE + "s_add_u32 s7, s6, 3\nv_mov_b32_e32 v9, 0\nloop:\nv_add_u32_e32 v9, 1, v9\n"
    text += "s_sub_u32 s7, s7, 1\ns_cmp_lg_u32 s7, 0\ns_cbranch_scc1 loop\n"
    run = Run(kernel(text + STORE))
    assert (run.out[:64] == 3).all() and (run.out[64:128] == 4).all()


def test_lanes_part_and_meet() -> None:
    text = PROLOGUE + "v_mov_b32_e32 v9, 1\nv_cmp_gt_u32_e32 vcc, 5, v0\ns_and_saveexec_b64 s[6:7], vcc\n"
    text += "s_cbranch_execz end\nv_mov_b32_e32 v9, 2\nend:\ns_or_b64 exec, exec, s[6:7]\n"
    run = Run(kernel(text + STORE))
    assert (run.out[:5] == 2).all() and (run.out[5:128] == 1).all()


# --- the rest --------------------------------------------------------------------------------------------


def test_a_fault_says_where() -> None:
    with pytest.raises(OutOfRange, match=r"near.*global_load_dword v9.*work-groups \[0\], waves 0 to 1"):
        Run(kernel("v_mov_b32_e32 v2, 0\nv_mov_b32_e32 v3, 0\nglobal_load_dword v9, v[2:3], off\n"))


def test_endless() -> None:
    with pytest.raises(Endless):
        Run(kernel("again:\ns_branch again\n"))


def test_modes_and_instructions_that_are_not_known() -> None:
    with pytest.raises(NotModelled, match="s_trap"):
        kernel("s_trap 2\n")
    with pytest.raises(NotModelled, match="hwreg"):
        kernel("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 3\n")
    assert issubclass(NotModelled, Fault)


def test_arguments_end_where_they_end() -> None:
    with pytest.raises(OutOfRange, match="kernel arguments"):
        Run(kernel("s_load_dwordx4 s[4:7], s[0:1], 0x8\n"))


def test_bank_conflicts() -> None:
    """By hand: 32 banks of 4 bytes, passes of lanes by width and direction."""
    lane, full = np.arange(64), np.ones(64, bool)
    assert len(phases(4, False, 64)) == 2 and len(phases(16, False, 64)) == len(phases(16, True, 64)) == 8
    assert conflicts(lane * 4, 4, False, full) == 0
    assert conflicts(lane * 8, 4, False, full) == 2  # two lanes a bank, in each of two passes
    assert conflicts(lane * 128, 4, False, full) == 2 * 31
    assert conflicts(lane * 0, 4, False, full) == 0  # one word for all
    assert conflicts(lane * 16, 16, False, full) == 0 and conflicts(lane * 16, 16, True, full) == 0
    assert conflicts(lane * 128, 16, True, full) == 8 * 7
    # Rows of 64 bytes: lanes 0-7 of a write meet in pairs of rows, a read's groups mix two rows of eight.
    assert conflicts(lane * 64, 16, True, full) == 8 * 3
    few = lane < 2
    assert conflicts(lane * 128, 4, False, few) == 1
    assert {x for g in phases(16, False, 64) for x in g} == set(range(64))
