// How a block's tile of the output is cut: block -> waves -> matrix atoms, and the shared stages that feed it.
#pragma once
#include <portagemm/barrier.hpp>
#include <portagemm/layout.hpp>

namespace pg {

// "Wave" here means the lanes that run one atom together: a wave for mma.sync and MFMA, a warpgroup for wgmma.
template <class Atom, int BlockM, int BlockN, int BlockK, int WavesM, int WavesN>
struct block_tile {
    using atom = Atom;
    static constexpr i32 m = BlockM, n = BlockN, k = BlockK;
    static constexpr i32 waves_m = WavesM, waves_n = WavesN;
    static constexpr i32 wave_m = BlockM / WavesM, wave_n = BlockN / WavesN;
    static constexpr i32 atoms_m = wave_m / Atom::m, atoms_n = wave_n / Atom::n;
    static constexpr i32 k_steps = BlockK / Atom::k;
    static constexpr i32 threads = WavesM * WavesN * Atom::lanes;
    static_assert(wave_m * WavesM == BlockM && wave_n * WavesN == BlockN, "waves must cover the block");
    static_assert(atoms_m * Atom::m == wave_m && atoms_n * Atom::n == wave_n, "atoms must cover the wave tile");
    static_assert(k_steps * Atom::k == BlockK, "atoms must cover the stage's depth");

    // Origin of a wave's part of the block tile.
    PG_HD static constexpr coord wave_origin(i32 wave) { return {(wave % WavesM) * wave_m, (wave / WavesM) * wave_n}; }
};

// One stage of one operand in shared memory, and who reads it.
template <class Stage, scope Readers>
struct shared_tile {
    static constexpr scope readers = Readers;
    alignas(Stage::alignment) u8 data[Stage::size];
};

}  // namespace pg
