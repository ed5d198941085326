// Prints the maps of an atom as lists of row, col for every lane and element. Included after check.hpp.
#pragma once
#include <portagemm/concepts.hpp>

namespace pg {

template <class Map>
void print_map(const char* name, i32 lanes, i32 size, Map map) {
    std::vector<i32> places;
    for (i32 lane = 0; lane < lanes; lane++) {
        for (i32 i = 0; i < size; i++) {
            const coord at = map(lane, i);
            places.push_back(at.row);
            places.push_back(at.col);
        }
    }
    entry(name, places);
}

template <class Atom>
void print_atom() {
    const auto c = [](i32 lane, i32 i) { return Atom::c(lane, i); };
    if constexpr (register_atom<Atom>) {
        static_assert(maps_are_sound<Atom>());
        entry("shape", std::vector<i32>{Atom::m, Atom::n, Atom::k, Atom::lanes});
        print_map("a", Atom::lanes, Atom::a_size, [](i32 lane, i32 i) { return Atom::a(lane, i); });
        print_map("b", Atom::lanes, Atom::b_size, [](i32 lane, i32 i) { return Atom::b(lane, i); });
    } else {
        static_assert(matrix_atom<Atom> && covers<Atom::lanes, Atom::c_size, Atom::m, Atom::n>(c, 1));
        entry("shape", std::vector<i32>{Atom::m, Atom::n, Atom::k, Atom::lanes});
    }
    print_map("c", Atom::lanes, Atom::c_size, c);
}

}  // namespace pg
