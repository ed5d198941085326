// One int8 atom as a kernel of one wave, for `using atom = ...` before it: D (m, n) of 32-bit sums = A (m, k) times
// B (n, k) transposed, all packed by rows. There is no public operation for int8: this shows the atom, its maps and its
// reads out of a swizzled stage.
#pragma once
#include <portagemm/layout.hpp>

struct int8_args {
    const signed char* a;
    const signed char* b;
    int* d;
};

using int8_stage_a = pg::swizzled_stage<signed char, atom::m, atom::k, pg::major::k>;
using int8_stage_b = pg::swizzled_stage<signed char, atom::n, atom::k, pg::major::k>;

PG_DEVICE void int8_copy(const signed char* from, unsigned char* stage, int rows, int lane, auto offset) {
    for (int e = lane * 16; e < rows * atom::k; e += atom::lanes * 16) {
        for (int x = 0; x < 16; x++) stage[offset(e / atom::k, e % atom::k) + x] = from[e + x];
    }
}

PG_DEVICE void int8_body(const int8_args& args) {
    unsigned char* a = pg::vendor::shared_memory();
    unsigned char* b = a + 8192;
    const int lane = pg::vendor::thread();
    int8_copy(args.a, a, atom::m, lane, [](int mn, int k) { return int8_stage_a::offset(mn, k); });
    int8_copy(args.b, b, atom::n, lane, [](int mn, int k) { return int8_stage_b::offset(mn, k); });
    pg::vendor::barrier(2);
    typename atom::a_fragment fa;
    typename atom::b_fragment fb;
    atom::template read_a<int8_stage_a>(fa, a, 0, 0, lane);
    atom::template read_b<int8_stage_b>(fb, b, 0, 0, lane);
    int sum[atom::c_size] = {};
    atom::mma(sum, fa, fb);
    for (int r = 0; r < atom::c_size; r++) {
        const pg::coord at = atom::c(lane, r);
        args.d[at.row * atom::n + at.col] = sum[r];
    }
}

PG_ENTRY(int8_atom, int8_args, atom::lanes, 1, int8_body)
