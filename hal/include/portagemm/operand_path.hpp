// Shared stage -> matrix unit, through registers, for any atom and any stage: each lane reads the elements that the
// atom's map gives it. Archs with a faster instruction (ldmatrix) or with none at all (descriptors) have their own.
#pragma once
#include <portagemm/dtypes.hpp>
#include <portagemm/layout.hpp>

namespace pg {

// map(lane, i) -> {mn, k} within the atom. Run is the atom's promise that elements i .. i + Run - 1 follow each other
// along K from a multiple of Run (concepts.hpp checks it); in a K-major stage they are read together.
template <class Stage, int Run, int Size, class Map>
PG_DEVICE void read_by_map(typename Stage::element (&fragment)[Size], const u8* stage, i32 mn, i32 k, i32 lane,
                           Map map) {
    using element = typename Stage::element;
    constexpr i32 run = Stage::order == major::k ? min(Run, Stage::run) : 1;
    PG_UNROLL
    for (i32 i = 0; i < Size; i += run) {
        const coord c = map(lane, i);
        const u8* from = stage + Stage::offset(mn + c.row, k + c.col);
        if constexpr (run > 1) {
            constexpr i32 width = run * i32(sizeof(element));
            *reinterpret_cast<bytes<width>*>(&fragment[i]) = *reinterpret_cast<const bytes<width>*>(from);
        } else {
            fragment[i] = *reinterpret_cast<const element*>(from);
        }
    }
}

}  // namespace pg
