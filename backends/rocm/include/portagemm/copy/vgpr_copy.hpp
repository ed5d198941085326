// Global memory -> registers -> LDS, as AMD GPUs like it: every load of a tile in flight before anything waits, and no
// address computed in the main loop.
//
// A lane's chunks lie at fixed distances (32 bits) from the tile's first element, whose address is the same for all
// lanes: global loads add the two (CDNA2 ISA, 9.3: SADDR). Rows beyond the operand need no zeros, since their products
// reach no output: their lanes read the operand's last row instead. Only K's last step has chunks to clear.
//
// A tile with chunks that the operand's edge cuts (all lanes agree which), one whose elements are too far apart for 32
// bits, and an operand that is read in chunks so narrow that a tile of them does not fit the registers, go element by
// element straight into the stage.
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
    // Chunks that a lane holds while the tile before is computed; beyond, its registers would be the accumulators'. A wave
    // of a block of 512 threads has half as many registers.
    static constexpr i32 most_rounds = Threads >= 512 ? 4 : 8;
    static constexpr bool narrow = rounds > most_rounds;
    static constexpr i32 held = narrow ? 1 : rounds;
    static constexpr i32 size = sizeof(Element);
    struct registers {
        chunk value[held];
        u32 place[held];   // bytes from the tile's first element to this lane's chunks
        const void* tile;  // its first element
        i32 left_mn;
        i32 left_k;       // of the step in flight
        bool by_element;  // the tile's every step goes element by element
        bool direct;      // the step in flight did
    };

    PG_DEVICE static void begin(registers& r, const tile_source& s, i32 thread) {
        const i32 left_mn = r.left_mn = vendor::uniform(s.mn_end - s.mn);
        r.tile = vendor::uniform(static_cast<const Element*>(s.ptr) + s.mn * row_step(s));
        const i64 span = (Stage::mn * row_step(s) + Stage::k * k_step(s)) * size;
        r.by_element = narrow || span >= i64(1) << 31 || (along_mn && left_mn < Stage::mn && left_mn % vector != 0);
        r.direct = true;
        const u32 row = u32(row_step(s)) * u32(size), col = u32(k_step(s)) * u32(size);
        PG_UNROLL
        for (i32 i = 0; i < held; i++) {
            const coord o = place_of(thread, i);
            const i32 mn = o.row < left_mn ? o.row : along_mn ? 0 : left_mn - 1;
            r.place[i] = u32(mn) * row + u32(o.col) * col;
            r.value[i] = vendor::unspecified<chunk>();
        }
    }

    // Whether steps of whole K may be copied by fetch_whole and commit_whole.
    PG_DEVICE static bool takes_whole_steps(const registers& r) { return !r.by_element; }

    // Steps that lie within K, in a tile that is not copied by element: loads and nothing else. A cursor walks them.
    struct cursor {
        const u8* at;
        i64 step;
        u32 place[held];
    };
    PG_DEVICE static cursor whole_steps_from(const registers& r, const tile_source& s, i32 k) {
        const i64 step = k_step(s) * size;
        cursor c = {static_cast<const u8*>(vendor::uniform(static_cast<const u8*>(r.tile) + k * step)),
                    Stage::k * step};
        PG_UNROLL
        for (i32 i = 0; i < held; i++) c.place[i] = r.place[i];
        return c;
    }
    PG_DEVICE static void fetch_whole(registers& r, cursor& c) {
        if constexpr (!narrow) {
            PG_UNROLL
            for (i32 i = 0; i < held; i++) {
                // NOTE: LLVM adds a place in the load only where it sees that it has 32 bits, not where that was made 64
                // before the loop: so it must look new each time. Where there are many, registers are dearer than that.
                if constexpr (held <= 4) c.place[i] = u32(vendor::opaque_vector(i32(c.place[i])));
                r.value[i] = load(c.at, held <= 4 ? c.place[i] : r.place[i]);
            }
        }
        c.at += c.step;
    }
    PG_DEVICE static void commit_whole(registers& r, u8* stage, i32 thread) {
        if constexpr (!narrow) store(r, stage, thread);
    }

    PG_DEVICE static void fetch(registers& r, const tile_source& s, u8* stage, i32 k, i32 thread, no_token) {
        k = vendor::uniform(k);
        r.left_k = vendor::uniform(s.k_end) - k;
        r.direct = r.by_element || (!along_mn && vector > 1 && r.left_k < Stage::k && r.left_k % vector != 0);
        if (r.direct) {
            by_element(r, s, stage, k, thread);
            // NOTE: not "as before": registers that one path leaves alone are copied where the paths meet, and the copy
            // waits for loads in flight.
            PG_UNROLL
            for (i32 i = 0; i < held; i++) r.value[i] = vendor::unspecified<chunk>();
        } else if constexpr (!narrow) {
            if (r.left_k < Stage::k) {  // K's last step: lanes beyond it read its first column; commit clears that
                const u32 col = u32(k_step(s)) * u32(size);
                PG_UNROLL
                for (i32 i = 0; i < held; i++) {
                    const coord o = place_of(thread, i);
                    if (o.col >= r.left_k) r.place[i] -= u32(o.col) * col;
                }
            }
            const u8* first = static_cast<const u8*>(r.tile) + k * k_step(s) * size;
            PG_UNROLL
            for (i32 i = 0; i < held; i++) r.value[i] = load(first, r.place[i]);
        }
    }

    PG_DEVICE static void commit(registers& r, u8* stage, i32 thread) {
        if (narrow || r.direct) return;
        if constexpr (!narrow) {
            if (r.left_k < Stage::k) {
                PG_UNROLL
                for (i32 i = 0; i < held; i++) {
                    if (place_of(thread, i).col >= r.left_k) r.value[i] = chunk{};
                }
            }
            store(r, stage, thread);
        }
    }

    // What is on its way, as words of 32 bits: for who looks for values that need care.
    template <class Function>
    PG_DEVICE static void each_word(const registers& r, Function f) {
        static_assert(narrow || Width % 4 == 0 || size == 2);
        if constexpr (!narrow) {
            PG_UNROLL
            for (i32 i = 0; i < held; i++) {
                if constexpr (Width <= 4) {
                    f(u32(r.value[i]));
                } else {
                    PG_UNROLL
                    for (i32 w = 0; w < Width / 4; w++) f(r.value[i][w]);
                }
            }
        }
    }

  private:
    PG_DEVICE static coord place_of(i32 thread, i32 round) {
        const i32 chunk = thread + round * Threads;
        return geometry::origin(chunks % Threads == 0 || chunk < chunks ? chunk : 0);
    }

    // One of the strides is known to be 1.
    PG_DEVICE static i64 row_step(const tile_source& s) { return Global == major::mn ? 1 : s.row; }
    PG_DEVICE static i64 k_step(const tile_source& s) { return Global == major::k ? 1 : s.col; }

    PG_DEVICE static chunk load(const u8* first, u32 place) { return *(global<chunk>)((global<u8>)first + place); }

    PG_DEVICE static void store(const registers& r, u8* stage, i32 thread) {
        using stored = typename Stage::element;
        constexpr bool whole = same_type<stored, Element> && (vector == 1 || along_mn == (Stage::order == major::mn));
        // Transposed, each element has an address of its own: too many to keep over the loop.
        if (!whole && vector * held > 8) thread = vendor::opaque_vector(thread);
        PG_UNROLL
        for (i32 i = 0; i < held; i++) {
            if (chunks % Threads != 0 && thread + i * Threads >= chunks) break;
            const coord o = geometry::origin(thread + i * Threads);
            if constexpr (whole) {
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

    // Neighbouring threads take neighbouring elements of the contiguous dimension, a few at a time, so that their loads
    // overlap. fetch may write the stage: schedules call it only once the stage's readers have left, as asynchronous
    // copies need it.
    PG_DEVICE static void by_element(const registers& r, const tile_source& s, u8* stage, i32 k, i32 thread) {
        using stored = typename Stage::element;
        constexpr i32 elements = Stage::mn * Stage::k, together = 4;
        const Element* tile = static_cast<const Element*>(r.tile) + k * k_step(s);
        thread = vendor::opaque_vector(thread);  // a rare path: its addresses are not worth registers in the main loop
        PG_ROLLED
        for (i32 first = thread; first < elements; first += Threads * together) {
            single x[together];
            PG_UNROLL
            for (i32 i = 0; i < together; i++) {
                const coord o = element_at(first + i * Threads);
                x[i] = single{};
                if (o.row < r.left_mn && o.col < r.left_k) {
                    x[i] = *(global<single>)(tile + o.row * row_step(s) + o.col * k_step(s));
                }
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
