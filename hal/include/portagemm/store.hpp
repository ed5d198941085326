// Accumulators -> global memory, for any strides of D. Archs with a faster way (the tensor copy engine) add their own.
#pragma once
#include <portagemm/epilogue.hpp>

namespace pg {

// Which way the elements of a vector of D follow each other: along n as a rule, along m where operands are swapped.
enum class along { n, m };

// Vector elements of D from (m, n) on, to where `to` says they lie, together where they all lie inside. Vector > 1 only
// where the planner knows that D is contiguous that way and that address and strides are multiples of the vector.
template <class ElementD, int Vector, along Along = along::n, class Epilogue>
PG_DEVICE void store_vector_at(ElementD* to, const f32* value, const Epilogue& e, const gemm_params& p, i32 m, i32 n) {
    constexpr i32 dm = Along == along::m ? 1 : 0, dn = 1 - dm;
    const i32 inside = Along == along::m ? p.m - m : p.n - n;
    if (Vector > 1 && Vector <= inside) {
        constexpr i32 width = Vector * i32(sizeof(ElementD));
        alignas(width) ElementD packed[Vector];
        PG_UNROLL
        for (i32 v = 0; v < Vector; v++) packed[v] = from_f32<ElementD>(e.apply(value[v], m + v * dm, n + v * dn));
        *reinterpret_cast<bytes<width>*>(to) = *reinterpret_cast<const bytes<width>*>(packed);
    } else {
        const i64 step = Along == along::m ? p.d.row : p.d.col;
        PG_UNROLL
        for (i32 v = 0; v < Vector; v++) {
            if (v < inside) to[i64(v) * step] = from_f32<ElementD>(e.apply(value[v], m + v * dm, n + v * dn));
        }
    }
}
template <class ElementD, int Vector, along Along = along::n, class Epilogue>
PG_DEVICE void store_vector(ElementD* d, const f32* value, const Epilogue& e, const gemm_params& p, i32 m, i32 n) {
    store_vector_at<ElementD, Vector, Along>(d + i64(m) * p.d.row + i64(n) * p.d.col, value, e, p, m, n);
}

template <class ElementD>
PG_DEVICE ElementD* output_of(const gemm_params& p, const work& w) {
    return static_cast<ElementD*>(const_cast<void*>(p.d.ptr)) + batch_offset(p.d, p, w.batch) + w.slice * p.slice_d;
}

// Straight from where the accumulators are: for machines that keep them in memory anyway (the CPU).
template <class ElementD, int Vector>
struct direct_store {
    struct shared {};

    template <class Role>
    PG_DEVICE static void finish(const Role&) {}

    template <class Tile, class Epilogue, class Args, class Role>
    PG_DEVICE static void store(const plain_accumulator<Tile>& acc, const Epilogue& e, const Args& args, shared&,
                                const work& w, const Role& role) {
        using atom = typename Tile::atom;
        constexpr i32 run = min(Vector, atom::c_run);
        const gemm_params& p = args.params;
        const i32 lane = role.thread % atom::lanes;
        const coord origin = Tile::wave_origin(role.thread / atom::lanes);
        ElementD* d = output_of<ElementD>(p, w);
        for (i32 i = 0; i < Tile::atoms_m; i++) {
            for (i32 j = 0; j < Tile::atoms_n; j++) {
                for (i32 r = 0; r < atom::c_size; r += run) {
                    const coord at = atom::c(lane, r);
                    const i32 m = w.m + origin.row + i * atom::m + at.row;
                    const i32 n = w.n + origin.col + j * atom::n + at.col;
                    if (m < p.m && n < p.n) store_vector<ElementD, run>(d, &acc.value[i][j][r], e, p, m, n);
                }
            }
        }
    }
};

// Through shared memory, a strip of atom::m rows and Columns columns at a time: registers can only be addressed by
// constants, so everything that depends on the lane's place happens after the strip, in a rolled loop with whole rows
// side by side. That makes stores (and reads of C) coalesced, and the kernel a quarter of the size to compile.
template <class ElementD, int Vector, class Tile, int Columns, along Along = along::n>
struct staged_store {
    using atom = typename Tile::atom;
    static constexpr i32 lanes = atom::lanes;
    // Rows start 8 banks apart, so that pairs of columns of 4 rows hit all 32; where lanes hold 4 columns of every
    // fourth row, 4 banks, and those rows are half of the banks apart.
    static constexpr i32 pitch = Columns + (atom::c_run < 4 ? 8 : 4);
    static constexpr i32 strips = Tile::wave_n / Columns;
    static constexpr i32 vectors = atom::m * Columns / Vector;
    static_assert(strips * Columns == Tile::wave_n && (Along == along::m ? atom::m : Columns) % Vector == 0);
    static_assert(Columns % atom::n == 0 || atom::n % Columns == 0);
    struct shared {
        alignas(16) f32 strip[Tile::waves_m * Tile::waves_n][atom::m * pitch];
    };

    template <class Role>
    PG_DEVICE static void finish(const Role&) {}

    template <class Epilogue, class Args, class Role>
    PG_DEVICE static void store(const plain_accumulator<Tile>& acc, const Epilogue& e, const Args& args, shared& memory,
                                const work& w, const Role& role) {
        const gemm_params& p = args.params;
        const i32 wave = role.thread / lanes, lane = role.thread % lanes;
        const coord origin = Tile::wave_origin(wave);
        f32* strip = memory.strip[wave];
        ElementD* d = output_of<ElementD>(p, w);
        PG_UNROLL
        for (i32 i = 0; i < Tile::atoms_m; i++) {
            PG_UNROLL
            for (i32 s = 0; s < strips; s++) {
                group_barrier<lanes>(wave);  // the strip before has been read
                write_strip(acc, strip, i, s, lane);
                group_barrier<lanes>(wave);
                const i32 m0 = w.m + origin.row + i * atom::m, n0 = w.n + origin.col + s * Columns;
                read_strip(strip, d, e, p, m0, n0, lane);
            }
        }
    }

  private:
    // A lane's vectors lie in one column of vectors (along m: in one row) where lanes fill rows of them (columns): then
    // its place moves by a constant.
    template <class Epilogue>
    PG_DEVICE static void read_strip(const f32* strip, ElementD* d, const Epilogue& e, const gemm_params& p, i32 m0,
                                     i32 n0, i32 lane) {
        constexpr bool down = Along == along::n;
        constexpr i32 per_line = (down ? Columns : atom::m) / Vector;
        if constexpr (lanes % per_line == 0) {
            constexpr i32 step = lanes / per_line;
            const i32 first = lane / per_line, across = lane % per_line * Vector;
            if ((down ? n0 : m0) + across >= (down ? p.n : p.m)) return;
            const i32 row = down ? first : across, col = down ? across : first;
            ElementD* to = d + i64(m0 + row) * p.d.row + i64(n0 + col) * p.d.col;
            const i64 by = i64(step) * (down ? p.d.row : p.d.col);
            const i32 end = down ? min(atom::m, p.m - m0) : min(Columns, p.n - n0);
            PG_ROLLED
            for (i32 at = first; at < end; at += step) {
                store_one(strip, to, e, p, m0, n0, down ? at : across, down ? across : at);
                to += by;
            }
        } else {
            PG_ROLLED
            for (i32 v = lane; v < vectors; v += lanes) {
                const i32 row = down ? v / per_line : v % per_line * Vector;
                const i32 col = down ? v % per_line * Vector : v / per_line;
                if (m0 + row >= p.m || n0 + col >= p.n) continue;
                store_one(strip, d + i64(m0 + row) * p.d.row + i64(n0 + col) * p.d.col, e, p, m0, n0, row, col);
            }
        }
    }

    template <class Epilogue>
    PG_DEVICE static void store_one(const f32* strip, ElementD* to, const Epilogue& e, const gemm_params& p, i32 m0,
                                    i32 n0, i32 row, i32 col) {
        if constexpr (Along == along::m) {
            f32 value[Vector];
            PG_UNROLL
            for (i32 x = 0; x < Vector; x++) value[x] = strip[(row + x) * pitch + col];
            store_vector_at<ElementD, Vector, Along>(to, value, e, p, m0 + row, n0 + col);
        } else {
            store_vector_at<ElementD, Vector>(to, strip + row * pitch + col, e, p, m0 + row, n0 + col);
        }
    }

    // A strip is several atoms side by side, or a range of columns of one wide atom: then its registers are a range too.
    PG_DEVICE static void write_strip(const plain_accumulator<Tile>& acc, f32* strip, i32 i, i32 s, i32 lane) {
        constexpr i32 atoms = max(1, Columns / atom::n);
        constexpr i32 size = atom::c_size * min(Columns, atom::n) / atom::n;
        PG_UNROLL
        for (i32 j = 0; j < atoms; j++) {
            PG_UNROLL
            for (i32 r = 0; r < size; r += atom::c_run) {
                const i32 index = atoms * s + j, wide = s * Columns % max(Columns, atom::n);
                const i32 atom_index = Columns >= atom::n ? index : s * Columns / atom::n;
                const i32 first = Columns >= atom::n ? r : wide * atom::c_size / atom::n + r;
                const coord at = atom::c(lane, first);
                f32* to = strip + at.row * pitch + (Columns >= atom::n ? at.col + j * atom::n : at.col - wide);
                PG_UNROLL
                for (i32 x = 0; x < atom::c_run; x++) to[x] = acc.value[i][atom_index][first + x];
            }
        }
    }
};

}  // namespace pg
