// Contracts of the exchangeable parts, and the checks that every atom's maps must pass.
#pragma once
#include <portagemm/layout.hpp>

namespace pg {

template <class T>
concept same_as_int = same_type<T, i32>;

// A matrix atom: D[m, n] += A[m, k] * B[n, k], run by `lanes` lanes together.
//   element           type of A and B in the stage
//   a_fragment, ...   what a lane holds; c is always f32[c_size]
//   c(lane, i)        constexpr map of the accumulator
//   read_a, read_b    the operand's path: stage -> fragment (registers), or stage -> descriptor
template <class T>
concept matrix_atom = requires {
    typename T::element;
    typename T::a_fragment;
    typename T::b_fragment;
    { T::m + T::n + T::k + T::lanes + T::c_size } -> same_as_int;
    T::c(0, 0);
};

// An atom whose operands go through registers also has maps a(lane, i) -> {m, k} and b(lane, i) -> {n, k}.
template <class T>
concept register_atom = matrix_atom<T> && requires {
    T::a(0, 0);
    T::b(0, 0);
    T::a_size + T::b_size + T::a_run + T::b_run;
};

// Every element of a rows x cols tile is held by exactly `copies` (lane, i) pairs, and none lies outside.
template <int Lanes, int Size, int Rows, int Cols, class Map>
PG_HD constexpr bool covers(Map map, i32 copies) {
    u8 seen[Rows * Cols] = {};
    for (i32 lane = 0; lane < Lanes; lane++) {
        for (i32 i = 0; i < Size; i++) {
            const coord c = map(lane, i);
            if (c.row < 0 || c.row >= Rows || c.col < 0 || c.col >= Cols) return false;
            seen[c.row * Cols + c.col]++;
        }
    }
    for (i32 e = 0; e < Rows * Cols; e++) {
        if (seen[e] != copies) return false;
    }
    return true;
}

// Elements i .. i + run - 1 follow each other along the second coordinate, from a multiple of `run`.
template <int Lanes, int Size, class Map>
PG_HD constexpr bool has_runs(Map map, i32 run) {
    for (i32 lane = 0; lane < Lanes; lane++) {
        for (i32 i = 0; i < Size; i += run) {
            const coord first = map(lane, i);
            if (first.col % run != 0) return false;
            for (i32 r = 1; r < run; r++) {
                if (!(map(lane, i + r) == coord{first.row, first.col + r})) return false;
            }
        }
    }
    return Size % run == 0;
}

// All maps of a register atom at once. `static_assert(maps_are_sound<...>)` stands under every atom.
template <class Atom>
PG_HD constexpr bool maps_are_sound() {
    constexpr auto a = [](i32 lane, i32 i) { return Atom::a(lane, i); };
    constexpr auto b = [](i32 lane, i32 i) { return Atom::b(lane, i); };
    constexpr auto c = [](i32 lane, i32 i) { return Atom::c(lane, i); };
    return covers<Atom::lanes, Atom::a_size, Atom::m, Atom::k>(a, Atom::lanes * Atom::a_size / (Atom::m * Atom::k)) &&
           covers<Atom::lanes, Atom::b_size, Atom::n, Atom::k>(b, Atom::lanes * Atom::b_size / (Atom::n * Atom::k)) &&
           covers<Atom::lanes, Atom::c_size, Atom::m, Atom::n>(c, 1) &&
           has_runs<Atom::lanes, Atom::a_size>(a, Atom::a_run) && has_runs<Atom::lanes, Atom::b_size>(b, Atom::b_run) &&
           has_runs<Atom::lanes, Atom::c_size>(c, Atom::c_run);
}

// A schedule: who runs fetch, commit, read and mma, and when. `run(sync, body)` calls the body once for each role this
// thread plays, with an object that has `mainloop(tile, k_tiles)` and says what the role does.
template <class T>
concept schedule = requires {
    { T::stages + T::cluster } -> same_as_int;
    typename T::sync;
};

}  // namespace pg
