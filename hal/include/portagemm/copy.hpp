// Global memory -> registers -> shared stage: the copy every arch can do, and the only one that converts.
#pragma once
#include <portagemm/dtypes.hpp>
#include <portagemm/layout.hpp>
#include <portagemm/params.hpp>

namespace pg {

// What a copy needs to know of its operand for one tile.
struct tile_source {
    const void* ptr;  // element (0, 0) of this batch's matrix, or the operand's descriptor
    i64 row, col;     // strides, elements: along mn, along k
    i32 mn, mn_end;   // first mn of the tile, extent of the operand
    i32 k_end;        // K of the work
    i64 batch;        // coordinate, for copies by descriptor
};

// Copies that complete on a barrier take a token of it; the others take this.
struct no_token {};

// In its place: the caller knows, from the copy's `inside`, that the step of K needs no check.
struct inside_step {};

// A chunk is Width bytes that are contiguous in global memory: along K or along MN. Elements past mn_end or k_end are
// not read and become zeros. Width == sizeof(Element) allows any strides and any alignment.
template <class Element, class Stage, major Global, int Width, int Threads>
struct register_copy {
    using element = Element;
    static constexpr bool asynchronous = false;
    static constexpr i32 vector = Width / i32(sizeof(Element));
    static constexpr bool along_mn = Global == major::mn;
    static_assert(vector >= 1 && (Global != major::strided || vector == 1));
    static constexpr i32 chunks_k = along_mn ? Stage::k : Stage::k / vector;
    static constexpr i32 chunks_mn = along_mn ? Stage::mn / vector : Stage::mn;
    static constexpr i32 chunks = chunks_k * chunks_mn;
    static constexpr i32 rounds = ceil_div(chunks, Threads);
    struct registers {
        alignas(Width) Element value[rounds][vector];  // written as whole chunks
    };

    // Neighbouring threads take neighbouring chunks of the contiguous dimension.
    PG_DEVICE static coord origin(i32 chunk) {
        if constexpr (along_mn) {
            return {(chunk % chunks_mn) * vector, chunk / chunks_mn};
        } else {
            return {chunk / chunks_k, (chunk % chunks_k) * vector};
        }
    }

    PG_DEVICE static void fetch(registers& r, const tile_source& s, u8*, i32 k, i32 thread, no_token) {
        PG_UNROLL
        for (i32 i = 0; i < rounds; i++) load(r.value[i], s, k, thread + i * Threads);
    }

    PG_DEVICE static void commit(registers& r, u8* stage, i32 thread) {
        PG_UNROLL
        for (i32 i = 0; i < rounds; i++) store(r.value[i], stage, thread + i * Threads);
    }

    // Both at once, a few chunks at a time: needs few registers, and waits for memory.
    PG_DEVICE static void copy(const tile_source& s, u8* stage, i32 k, i32 thread) {
        constexpr i32 together = rounds <= 8 ? rounds : min(rounds & -rounds, 8);  // no round past the last
        PG_ROLLED
        for (i32 i = 0; i < rounds; i += together) {
            Element value[together][vector];
            PG_UNROLL
            for (i32 j = 0; j < together; j++) load(value[j], s, k, thread + (i + j) * Threads);
            PG_UNROLL
            for (i32 j = 0; j < together; j++) store(value[j], stage, thread + (i + j) * Threads);
        }
    }

  private:
    // A chunk past the tile's last is neither loaded nor stored.
    PG_DEVICE static void load(Element (&value)[vector], const tile_source& s, i32 k, i32 chunk) {
        const coord o = origin(chunk);
        const i32 mn = s.mn + o.row, kk = k + o.col;
        const bool mine = chunks % Threads == 0 || chunk < chunks;
        const Element* from = static_cast<const Element*>(s.ptr) + i64(mn) * s.row + i64(kk) * s.col;
        const i32 valid = !mine || mn >= s.mn_end || kk >= s.k_end ? 0
                          : along_mn                               ? min(vector, s.mn_end - mn)
                                                                   : min(vector, s.k_end - kk);
        if (vector > 1 && valid == vector) {
            *reinterpret_cast<bytes<Width>*>(value) = *reinterpret_cast<const bytes<Width>*>(from);
        } else {
            PG_UNROLL
            for (i32 v = 0; v < vector; v++) value[v] = v < valid ? from[v] : Element{};
        }
    }

    PG_DEVICE static void store(const Element (&value)[vector], u8* stage, i32 chunk) {
        using stored = typename Stage::element;
        if (chunks % Threads != 0 && chunk >= chunks) return;
        const coord o = origin(chunk);
        if constexpr (same_type<stored, Element> && along_mn == (Stage::order == major::mn) && vector > 1) {
            *reinterpret_cast<bytes<Width>*>(stage + Stage::offset(o.row, o.col)) =
                *reinterpret_cast<const bytes<Width>*>(value);
        } else {
            PG_UNROLL
            for (i32 v = 0; v < vector; v++) {
                const i32 at = along_mn ? Stage::offset(o.row + v, o.col) : Stage::offset(o.row, o.col + v);
                *reinterpret_cast<stored*>(stage + at) = convert<stored>(value[v]);
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
};

}  // namespace pg
