// Prints where elements of stages lie, and which shared addresses reads and copies of a tile ask for.
#pragma once
#include <portagemm/copy.hpp>
#include <portagemm/layout.hpp>

namespace pg {

alignas(1024) inline u8 shared_memory_under_check[1 << 18];

inline u8* shared_start() {
    vendor::shared_base = shared_memory_under_check;
    vendor::addresses.clear();
    return shared_memory_under_check;
}

// Byte offset of every element, mn by mn.
template <class Stage>
void print_offsets(const char* name) {
    std::vector<i32> offsets;
    for (i32 mn = 0; mn < Stage::mn; mn++) {
        for (i32 k = 0; k < Stage::k; k++) offsets.push_back(Stage::offset(mn, k));
    }
    entry(name, offsets);
}

// {faults of the bijection, 16-byte chunks that are torn, bytes}.
template <class Stage>
void print_soundness(const char* name) {
    using T = typename Stage::element;
    std::vector<u8> seen(Stage::size / sizeof(T));
    i32 faults = 0, torn = 0;
    for (i32 mn = 0; mn < Stage::mn; mn++) {
        for (i32 k = 0; k < Stage::k; k++) {
            const i32 at = Stage::offset(mn, k);
            faults += at < 0 || at >= Stage::size || at % i32(sizeof(T)) != 0 || seen[at / sizeof(T)]++ != 0;
            const i32 along = Stage::order == major::k ? k : mn, first = along / Stage::run * Stage::run;
            const i32 start = Stage::order == major::k ? Stage::offset(mn, first) : Stage::offset(first, k);
            torn += start % 16 != 0 || at != start + (along - first) * i32(sizeof(T));
        }
    }
    entry(name, std::vector<i32>{faults, torn, Stage::size});
}

// Addresses that the lanes of a wave give to ldmatrix, for every atom of the stage: [atom][lane].
template <class Atom, class Stage, bool OfA>
void print_ldmatrix(const char* name) {
    const u8* stage = shared_start();
    constexpr i32 step = OfA ? Atom::m : Atom::n;
    for (i32 mn = 0; mn < Stage::mn; mn += step) {
        for (i32 k = 0; k < Stage::k; k += Atom::k) {
            for (i32 lane = 0; lane < Atom::lanes; lane++) {
                if constexpr (OfA) {
                    typename Atom::a_fragment f;
                    Atom::template read_a<Stage>(f, stage, mn, k, lane);
                } else {
                    typename Atom::b_fragment f;
                    Atom::template read_b<Stage>(f, stage, mn, k, lane);
                }
            }
        }
    }
    entry(name, vendor::addresses);
}

// An element that names its place; 0 is what stands for elements outside.
template <class Element>
Element named(i32 id) {
    if constexpr (same_type<Element, f32>) {
        return f32(id);
    } else {
        return Element{u16(id)};
    }
}

// A register copy run by all threads of a block, from k0 and mn0 on: stage elements that differ from the operand's,
// which are 0 outside of it. What lies in memory outside of the operand must never show.
template <class Element, class Stage, major Global, int Width, int Threads, bool AtOnce = false>
i32 wrong_after_copy(i32 mn_extent, i32 k_extent, i32 mn0, i32 k0) {
    using copy = register_copy<Element, Stage, Global, Width, Threads>;
    constexpr i32 line = 256;
    static Element matrix[line * line * 2];
    constexpr i64 row = Global == major::k ? line : Global == major::mn ? 1 : 2 * line;
    constexpr i64 col = Global == major::k ? 1 : Global == major::mn ? line : 2;
    const auto id = [](i32 mn, i32 k) { return mn * 128 + k + 1; };
    for (Element& x : matrix) x = named<Element>(65000);
    for (i32 mn = 0; mn < mn_extent; mn++) {
        for (i32 k = 0; k < k_extent; k++) matrix[mn * row + k * col] = named<Element>(id(mn, k));
    }
    u8* stage = shared_start();
    for (i32 i = 0; i < Stage::size + 1024; i++) stage[i] = 0xff;
    const tile_source source{matrix, row, col, mn0, mn_extent, k_extent, 0};
    std::vector<typename copy::registers> registers(Threads);
    if constexpr (AtOnce) {
        for (i32 t = 0; t < Threads; t++) copy::copy(source, stage, k0, t);
    } else {
        for (i32 t = 0; t < Threads; t++) copy::fetch(registers[t], source, stage, k0, t, no_token{});
        for (i32 t = 0; t < Threads; t++) copy::commit(registers[t], stage, t);
    }
    i32 wrong = 0;
    for (i32 i = 0; i < 1024; i++) wrong += stage[Stage::size + i] != 0xff;  // the next stage
    for (i32 mn = 0; mn < Stage::mn; mn++) {
        for (i32 k = 0; k < Stage::k; k++) {
            const bool inside = mn0 + mn < mn_extent && k0 + k < k_extent;
            const Element want = named<Element>(inside ? id(mn0 + mn, k0 + k) : 0);
            wrong += __builtin_memcmp(stage + Stage::offset(mn, k), &want, sizeof want) != 0;
        }
    }
    return wrong;
}

// Addresses to which all threads of a block copy a tile without registers: [thread][chunk]. An operand that ends
// within the tile has every chunk written all the same, with zeros.
template <class Copy, int Threads>
void print_asynchronous_copy(const char* name, i32 mn_end, i32 k_end) {
    static typename Copy::element memory[1 << 17];
    u8* stage = shared_start();
    tile_source source{memory, Copy::along_mn ? 1 : 256, Copy::along_mn ? 256 : 1, 0, mn_end, k_end, 0};
    typename Copy::registers registers;
    for (i32 t = 0; t < Threads; t++) {
        Copy::begin(registers, source, t);
        Copy::fetch(registers, source, stage, 0, t, no_token{});
    }
    entry(name, vendor::addresses);
}

}  // namespace pg
