// Accumulators of one wave: fp32 registers, one fragment for every atom of the wave tile. How products are summed on
// their way is a policy: at(kk, i, j) says where step kk of a stage adds, fold() leaves the whole sum in `value`.
#pragma once
#include <portagemm/tile.hpp>

namespace pg {

// Plain: the atom adds to the same registers over all of K.
template <class Tile>
struct plain_accumulator {
    using atom = typename Tile::atom;
    static constexpr i32 c_size = atom::c_size;
    using fragment = f32[c_size];
    fragment value[Tile::atoms_m][Tile::atoms_n];

    PG_DEVICE fragment& at(i32, i32 i, i32 j) { return value[i][j]; }
    PG_DEVICE void fold() {}

    // Every register, for what concerns all of them.
    template <class Function>
    PG_DEVICE void each(Function f) {
        PG_UNROLL
        for (i32 i = 0; i < Tile::atoms_m; i++) {
            PG_UNROLL
            for (i32 j = 0; j < Tile::atoms_n; j++) {
                PG_UNROLL
                for (i32 r = 0; r < c_size; r++) f(value[i][j][r]);
            }
        }
    }
    PG_DEVICE void clear() {
        each([](f32& x) { x = 0.0f; });
    }
};

// Interleaved: consecutive steps add to Ways sums in turn, so that a matrix instruction does not wait for the one
// before it. For narrow tiles, whose instructions take longer to finish than to issue.
template <class Tile, int Ways>
struct interleaved_accumulator : plain_accumulator<Tile> {
    static_assert(Ways >= 2);
    using base = plain_accumulator<Tile>;
    base more[Ways - 1];

    PG_DEVICE typename base::fragment& at(i32 kk, i32 i, i32 j) {
        return kk % Ways == 0 ? this->value[i][j] : more[kk % Ways - 1].value[i][j];
    }
    PG_DEVICE void fold() {
        PG_UNROLL
        for (i32 w = 0; w < Ways - 1; w++) {
            PG_UNROLL
            for (i32 i = 0; i < Tile::atoms_m; i++) {
                PG_UNROLL
                for (i32 j = 0; j < Tile::atoms_n; j++) {
                    PG_UNROLL
                    for (i32 r = 0; r < base::c_size; r++) this->value[i][j][r] += more[w].value[i][j][r];
                }
            }
        }
    }
    template <class Function>
    PG_DEVICE void each(Function f) {
        base::each(f);
        PG_UNROLL
        for (i32 w = 0; w < Ways - 1; w++) more[w].each(f);
    }
    PG_DEVICE void clear() {
        each([](f32& x) { x = 0.0f; });
    }
};

}  // namespace pg
