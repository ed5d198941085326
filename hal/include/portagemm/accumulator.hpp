// Accumulators of one wave: fp32 registers, one fragment for every atom of the wave tile.
#pragma once
#include <portagemm/tile.hpp>

namespace pg {

// Plain accumulation: the atom adds to the same registers over all of K.
template <class Tile>
struct plain_accumulator {
    using atom = typename Tile::atom;
    static constexpr i32 c_size = atom::c_size;
    f32 value[Tile::atoms_m][Tile::atoms_n][c_size];

    PG_DEVICE void clear() {
        PG_UNROLL
        for (i32 i = 0; i < Tile::atoms_m; i++) {
            PG_UNROLL
            for (i32 j = 0; j < Tile::atoms_n; j++) {
                PG_UNROLL
                for (i32 r = 0; r < c_size; r++) value[i][j][r] = 0.0f;
            }
        }
    }
};

}  // namespace pg
