"""Data-parallel primitives: from which lane a lane reads (CDNA2 ISA, "DPP: data parallel processing"; RDNA3, 7.6)."""

from __future__ import annotations

from typing import Any

import numpy as np


def lanes_of(b: Any, lanes: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], bool]:
    """(source lane, whether it exists, whether lanes without one read 0) of a DPP instruction."""
    lane = np.arange(lanes)
    row, at = lane // 16 * 16, lane % 16
    valid = np.ones(lanes, bool)
    source = None
    zero = b.value("bound_ctrl") in ("0", "1")  # printed as bound_ctrl:0 or :1, both meaning BOUND_CTRL set
    for name in ("row_mask", "bank_mask", "fi"):
        b.used.add(name)
    if b.flag("quad_perm"):
        source = lane // 4 * 4 + np.array(b.bits_of("quad_perm", []))[lane % 4]
    for name, step in (("row_shl", 1), ("row_shr", -1)):
        if b.flag(name):
            moved = at + step * b.integer(name)
            valid = (moved >= 0) & (moved < 16)
            source = row + moved % 16
    if b.flag("row_ror"):
        source = row + (at - b.integer("row_ror")) % 16
    if b.flag("row_mirror"):
        source = row + 15 - at
    if b.flag("row_half_mirror"):
        source = lane // 8 * 8 + 7 - lane % 8
    if b.flag("row_newbcast") or b.flag("row_share"):
        source = row + b.integer("row_newbcast" if b.flag("row_newbcast") else "row_share")
    if b.flag("row_xmask"):
        source = row + (at ^ b.integer("row_xmask"))
    if b.flag("row_bcast"):
        # lane 15 of each row to the row after it, or lane 31 to rows 2 and 3
        broadcast = b.integer("row_bcast")
        valid = lane > broadcast
        source = np.maximum(row - 1, 0) if broadcast == 15 else np.full(lanes, 31)
    if source is None:
        raise b.fail("DPP control")
    return source, valid, zero
