// Global memory -> registers -> LDS, as CDNA likes it: every load of a tile in flight before anything waits.
//
// The shared register_copy decides chunk by chunk, and reads the elements of a cut chunk one by one into registers.
// There LLVM must wait for the chunk's load before it may write the same registers, which serialises the loads; and the
// element loads, unrolled for every chunk, are most of the kernel. Here a chunk is whole or zero, without another
// branch. A tile that may hold cut chunks (all lanes agree which), and an operand that is read in chunks so narrow that
// a tile of them does not fit the registers, go element by element straight into the stage.
#pragma once
#include <portagemm/copy.hpp>

namespace pg::arch {

// A chunk as registers hold it. Scalars and vectors, no structs: those LLVM may keep in scratch when a branch sets
// them.
template <int Bytes>
struct chunk_of;
template <>
struct chunk_of<2> {
    typedef u16 __attribute__((may_alias)) type;
};
template <>
struct chunk_of<4> {
    typedef u32 __attribute__((may_alias)) type;
};
template <>
struct chunk_of<8> {
    typedef u32 __attribute__((vector_size(8), may_alias)) type;
};
template <>
struct chunk_of<16> {
    typedef u32 __attribute__((vector_size(16), may_alias)) type;
};

// What comes out of the argument block has lost its kind: reads through such a pointer are flat instructions, which
// count as LDS accesses too.
template <class T>
using global = const __attribute__((address_space(1))) T*;

template <class Element, class Stage, major Global, int Width, int Threads>
struct vgpr_copy {
    using geometry = register_copy<Element, Stage, Global, Width, Threads>;
    using element = Element;
    using chunk = typename chunk_of<Width>::type;
    using single = typename chunk_of<sizeof(Element)>::type;
    static constexpr bool asynchronous = false;
    static constexpr bool along_mn = geometry::along_mn;
    static constexpr i32 vector = geometry::vector, rounds = geometry::rounds, chunks = geometry::chunks;
    // Chunks that a lane holds while the tile before is computed; beyond, its registers would be the accumulators'.
    static constexpr i32 most_rounds = 8;
    static constexpr bool narrow = rounds > most_rounds;
    struct registers {
        chunk value[narrow ? 1 : rounds];
        bool direct;
    };

    PG_DEVICE static void fetch(registers& r, const tile_source& s, u8* stage, i32 k, i32 thread, no_token) {
        const Element* tile = static_cast<const Element*>(s.ptr) + i64(s.mn) * s.row + i64(k) * s.col;
        // NOTE: what is left along MN is the same in every step of K, and LLVM would keep each chunk's comparison with
        // it for the whole loop: a 64-bit mask each, more than there are scalar registers. Opaque, it is compared anew.
        const i32 left_mn = vendor::opaque_scalar(s.mn_end - s.mn), left_k = s.k_end - k;
        r.direct = narrow || (vector > 1 && (along_mn ? left_mn < Stage::mn && left_mn % vector != 0
                                                      : left_k < Stage::k && left_k % vector != 0));
        if constexpr (!narrow) {
            // NOTE: the loads come first and are masked, not skipped, in a direct tile: registers that one path leaves
            // as they were must be copied where the paths meet, and the copy waits for the loads.
            const Element* from = tile + place(s, geometry::origin(thread));
            PG_UNROLL
            for (i32 i = 0; i < rounds; i++) {
                const coord o = geometry::origin(thread + i * Threads);
                const bool mine = chunks % Threads == 0 || thread + i * Threads < chunks;
                if constexpr (!even_rounds) from = tile + place(s, o);
                r.value[i] = chunk{};
                if (mine && !r.direct && o.row < left_mn && o.col < left_k) r.value[i] = *(global<chunk>)(from);
                if constexpr (even_rounds) from += i64(Threads / row_of_chunks) * (along_mn ? s.col : s.row);
            }
        }
        if (r.direct) by_element(tile, s, stage, left_mn, left_k, thread);
    }

    PG_DEVICE static void commit(registers& r, u8* stage, i32 thread) {
        using stored = typename Stage::element;
        if (narrow || r.direct) return;
        PG_UNROLL
        for (i32 i = 0; i < rounds; i++) {
            if (chunks % Threads != 0 && thread + i * Threads >= chunks) break;
            const coord o = geometry::origin(thread + i * Threads);
            if constexpr (same_type<stored, Element> && (vector == 1 || along_mn == (Stage::order == major::mn))) {
                *reinterpret_cast<chunk*>(stage + Stage::offset(o.row, o.col)) = r.value[i];
            } else {
                PG_UNROLL
                for (i32 v = 0; v < vector; v++) {
                    const i32 at = along_mn ? Stage::offset(o.row + v, o.col) : Stage::offset(o.row, o.col + v);
                    *reinterpret_cast<stored*>(stage + at) = convert<stored>(element_of(r.value[i], v));
                }
            }
        }
    }

  private:
    template <class To>
    PG_DEVICE static To convert(Element x) {
        if constexpr (same_type<To, Element>) {
            return x;
        } else {
            return from_f32<To>(to_f32(x));
        }
    }

    PG_DEVICE static Element element_of(chunk c, i32 v) {
        if constexpr (Width == sizeof(Element)) {
            return __builtin_bit_cast(Element, c);
        } else {
            u32 word;
            if constexpr (Width == 4) {
                word = c;
            } else {
                word = c[v * i32(sizeof(Element)) / 4];
            }
            if constexpr (sizeof(Element) == 4) {
                return __builtin_bit_cast(Element, word);
            } else {
                return __builtin_bit_cast(Element, u16(v % 2 == 0 ? word : word >> 16));
            }
        }
    }

    // Where a round of threads fills whole rows of chunks, rounds are a uniform distance apart: one scalar step instead
    // of a 64-bit product for every chunk.
    static constexpr i32 row_of_chunks = along_mn ? geometry::chunks_mn : geometry::chunks_k;
    static constexpr bool even_rounds = Threads % row_of_chunks == 0;

    PG_DEVICE static i64 place(const tile_source& s, coord at) { return i64(at.row) * s.row + i64(at.col) * s.col; }

    // Neighbouring threads take neighbouring elements of the contiguous dimension, a few at a time, so that their loads
    // overlap. fetch may write the stage: schedules call it only once the stage's readers have left, as asynchronous
    // copies need it.
    PG_DEVICE static void by_element(const Element* tile, const tile_source& s, u8* stage, i32 left_mn, i32 left_k,
                                     i32 thread) {
        using stored = typename Stage::element;
        constexpr i32 elements = Stage::mn * Stage::k, together = 4;
        thread = vendor::opaque_vector(thread);  // a rare path: its addresses are not worth registers in the main loop
        PG_ROLLED
        for (i32 first = thread; first < elements; first += Threads * together) {
            single x[together];
            PG_UNROLL
            for (i32 i = 0; i < together; i++) {
                const coord o = element_at(first + i * Threads);
                x[i] = single{};
                if (o.row < left_mn && o.col < left_k) x[i] = *(global<single>)(tile + place(s, o));
            }
            PG_UNROLL
            for (i32 i = 0; i < together; i++) {
                if (elements % (Threads * together) != 0 && first + i * Threads >= elements) break;
                const coord o = element_at(first + i * Threads);
                *reinterpret_cast<stored*>(stage + Stage::offset(o.row, o.col)) =
                    convert<stored>(__builtin_bit_cast(Element, x[i]));
            }
        }
    }

    PG_DEVICE static coord element_at(i32 e) {
        if constexpr (along_mn) {
            return {e % Stage::mn, e / Stage::mn};
        } else {
            return {e / Stage::k, e % Stage::k};
        }
    }
};

}  // namespace pg::arch
