// Ampere and Ada (sm_80, sm_86, sm_89), and as a fallback everything newer: warp-wide mma.sync with ldmatrix, and
// asynchronous copies to shared memory. PTX ISA sections: 9.7.14 (mma.sync, ldmatrix), 9.7.9.25 (cp.async).
#pragma once
#include <portagemm/arch/sm80_instructions.hpp>
#include <portagemm/concepts.hpp>
#include <portagemm/copy.hpp>
#include <portagemm/operand_path.hpp>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "ldmatrix, mma.sync.m16n8k16 and cp.async need sm_80 or newer"
#endif

namespace pg::arch {

// D (16 x 16, fp32) += A (16 x 16) * B (16 x 16)^T as two mma.sync.m16n8k16: the pair shares one ldmatrix.x4 of B.
// Maps: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
template <class T>
struct mma_16816 {
    static_assert(same_type<T, fp16> || same_type<T, bf16>, "mma.m16n8k16 takes fp16 or bf16");
    using element = T;
    static constexpr i32 m = 16, n = 16, k = 16, lanes = 32;
    static constexpr i32 a_size = 8, b_size = 8, c_size = 8;
    static constexpr i32 a_run = 2, b_run = 2, c_run = 2;
    struct a_fragment {
        u32 x[4];
    };
    struct b_fragment {
        u32 x[4];
    };

    // Group = lane / 4 is a row, lane % 4 a pair of columns.
    PG_HD static constexpr coord a(i32 lane, i32 i) {
        return {lane / 4 + 8 * ((i / 2) % 2), (lane % 4) * 2 + i % 2 + 8 * (i / 4)};
    }
    PG_HD static constexpr coord b(i32 lane, i32 i) {
        return {lane / 4 + 8 * (i / 4), (lane % 4) * 2 + i % 2 + 8 * ((i / 2) % 2)};
    }
    PG_HD static constexpr coord c(i32 lane, i32 i) {
        return {lane / 4 + 8 * ((i / 2) % 2), (lane % 4) * 2 + i % 2 + 8 * (i / 4)};
    }

    // A lane's row of ldmatrix for the atom at (mn, 0) of a stage; other atoms of its wave lie constants away from it.
    // Matrices of x4 in register order: A (m 0-7, k 0-7), (m 8-15, k 0-7), (m 0-7, k 8-15), (m 8-15, k 8-15).
    template <class Stage>
    PG_DEVICE static i32 place_a(i32 mn, i32 lane) {
        return place<Stage>(mn, lane, 8 * (lane / 8 % 2), 8 * (lane / 16));
    }
    // B: (n 0-7, k 0-7), (n 0-7, k 8-15), (n 8-15, k 0-7), (n 8-15, k 8-15).
    template <class Stage>
    PG_DEVICE static i32 place_b(i32 mn, i32 lane) {
        return place<Stage>(mn, lane, 8 * (lane / 16), 8 * (lane / 8 % 2));
    }
    template <class Stage>
    PG_DEVICE static void read_a_at(a_fragment& f, const u8* stage, i32 place, i32 by_mn, i32 by_k) {
        ldmatrix_x4<Stage::order != major::k>(f.x, stage + Stage::moved(place, by_mn, by_k));
    }
    template <class Stage>
    PG_DEVICE static void read_b_at(b_fragment& f, const u8* stage, i32 place, i32 by_mn, i32 by_k) {
        ldmatrix_x4<Stage::order != major::k>(f.x, stage + Stage::moved(place, by_mn, by_k));
    }

    template <class Stage>
    PG_DEVICE static void read_a(a_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        read_a_at<Stage>(f, stage, place_a<Stage>(mn, lane), 0, kk);
    }
    template <class Stage>
    PG_DEVICE static void read_b(b_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        read_b_at<Stage>(f, stage, place_b<Stage>(mn, lane), 0, kk);
    }

    PG_DEVICE static void mma(f32 (&acc)[c_size], const a_fragment& a, const b_fragment& b) {
        mma_m16n8k16<T>(acc[0], acc[1], acc[2], acc[3], a.x, b.x[0], b.x[1]);
        mma_m16n8k16<T>(acc[4], acc[5], acc[6], acc[7], a.x, b.x[2], b.x[3]);
    }

  private:
    // ldmatrix takes 8 elements along the stage's own order from each lane.
    template <class Stage>
    PG_DEVICE static i32 place(i32 mn, i32 lane, i32 mn_of, i32 k_of) {
        return Stage::order == major::k ? Stage::offset(mn + mn_of + lane % 8, k_of)
                                        : Stage::offset(mn + mn_of, k_of + lane % 8);
    }
};

// D (16 x 8, fp32) += A (16 x 8) * B (8 x 8)^T in TF32: operands are rounded to 10 bits of mantissa as they are read.
// Maps: PTX ISA, "Matrix Fragments for mma.m16n8k8", .tf32.
struct mma_1688_tf32 {
    using element = f32;
    static constexpr i32 m = 16, n = 8, k = 8, lanes = 32;
    static constexpr i32 a_size = 4, b_size = 2, c_size = 4;
    static constexpr i32 a_run = 1, b_run = 1, c_run = 2;
    struct a_fragment {
        u32 x[4];
    };
    struct b_fragment {
        u32 x[2];
    };

    PG_HD static constexpr coord a(i32 lane, i32 i) { return {lane / 4 + 8 * (i % 2), lane % 4 + 4 * (i / 2)}; }
    PG_HD static constexpr coord b(i32 lane, i32 i) { return {lane / 4, lane % 4 + 4 * i}; }
    PG_HD static constexpr coord c(i32 lane, i32 i) { return {lane / 4 + 8 * (i / 2), (lane % 4) * 2 + i % 2}; }

    template <class Stage>
    PG_DEVICE static void read_a(a_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        f32 x[a_size];
        read_by_map<Stage, a_run>(x, stage, mn, kk, lane, [](i32 l, i32 i) { return a(l, i); });
        PG_UNROLL
        for (i32 i = 0; i < a_size; i++) f.x[i] = round_to_tf32(x[i]);
    }
    template <class Stage>
    PG_DEVICE static void read_b(b_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        f32 x[b_size];
        read_by_map<Stage, b_run>(x, stage, mn, kk, lane, [](i32 l, i32 i) { return b(l, i); });
        PG_UNROLL
        for (i32 i = 0; i < b_size; i++) f.x[i] = round_to_tf32(x[i]);
    }

    PG_DEVICE static void mma(f32 (&acc)[c_size], const a_fragment& a, const b_fragment& b) {
        mma_m16n8k8_tf32(acc, a.x, b.x);
    }
};

static_assert(maps_are_sound<mma_16816<fp16>>() && maps_are_sound<mma_1688_tf32>());

// Global -> shared without registers. Width is 16, 8 or 4 bytes; bytes beyond the operand's end become zeros
// (the instruction's src-size). Where the stage's order differs from the operand's, only 4-byte elements can be moved:
// each then goes to its own place.
template <class Element, class Stage, major Global, int Width, int Threads>
struct async_copy {
    using element = Element;
    using stage = Stage;
    static_assert(same_type<Element, typename Stage::element>, "an asynchronous copy cannot convert");
    static_assert(Width == 16 || Width == 8 || Width == 4, "cp.async moves 4, 8 or 16 bytes");
    static constexpr bool asynchronous = true;
    static constexpr i32 vector = Width / i32(sizeof(Element));
    static constexpr bool along_mn = Global == major::mn;
    static_assert(vector >= 1 && (vector == 1 || along_mn == (Stage::order == major::mn)));
    static constexpr i32 chunks_k = along_mn ? Stage::k : Stage::k / vector;
    static constexpr i32 chunks_mn = along_mn ? Stage::mn / vector : Stage::mn;
    static constexpr i32 chunks = chunks_k * chunks_mn;
    static constexpr i32 rounds = ceil_div(chunks, Threads);
    // Thread and round are then separate bits of a chunk's number: see swizzled_stage::moved.
    static constexpr bool bitwise = is_power_of_two(Threads) && is_power_of_two(along_mn ? chunks_mn : chunks_k);
    // Elements of a chunk that are inside are counted for every chunk, where that costs little next to the products of a
    // step: such a copy has one way, which needs fewer registers. The others have two.
    static constexpr bool one_way = vector == 1 || (along_mn && sizeof(Element) == 4);

    // What a thread's chunks have in common for all of a tile: those of later rounds lie constants away.
    struct registers {
        const Element* from;  // its first chunk at k = 0
        i32 room;             // elements from there to the operand's end along mn
        i32 to;               // offset of its first chunk in a stage
    };

    PG_HD static constexpr coord origin(i32 chunk) {
        if constexpr (along_mn) {
            return {(chunk % chunks_mn) * vector, chunk / chunks_mn};
        } else {
            return {chunk / chunks_k, (chunk % chunks_k) * vector};
        }
    }

    // Once a tile, before any fetch. What is held here stays in registers: computing it anew for every step would cost
    // more instructions than the matrix unit needs.
    PG_DEVICE static void begin(registers& r, tile_source& s, i32 thread) {
        const coord o = origin(thread);
        r.from = static_cast<const Element*>(s.ptr) + along_row(s, s.mn + o.row) + along_col(s, o.col);
        r.room = s.mn_end - s.mn - o.row;
        r.to = Stage::offset(o.row, o.col);
        hold(r.from);
        hold(r.room);
        hold(r.to);
        hold(along_mn ? s.col : s.row);
    }

    // Whole steps of K, and along mn no chunk that is inside in part: nothing is left to count. The same for all.
    PG_DEVICE static bool inside(const registers&, const tile_source& s, i32 k) {
        const i32 room = s.mn_end - s.mn;
        return k + Stage::k <= s.k_end && (!along_mn || vector == 1 || room >= Stage::mn || room % vector == 0);
    }

    PG_DEVICE static void fetch(registers& r, const tile_source& s, u8* stage, i32 k, i32 thread, inside_step) {
        copy_chunks<false>(r, s, stage, k, thread, Stage::k);
    }

    PG_DEVICE static void fetch(registers& r, const tile_source& s, u8* stage, i32 k, i32 thread, no_token) {
        if constexpr (one_way) {
            copy_chunks<(vector > 1)>(r, s, stage, k, thread, s.k_end - k - origin(thread).col);
        } else if (inside(r, s, k)) {
            fetch(r, s, stage, k, thread, inside_step{});
        } else {
            // A chunk that reads nothing may name any address.
            const coord first = origin(thread);
            const Element* from = r.from + along_col(s, k);
            PG_ROLLED
            for (i32 chunk = thread; chunk < chunks; chunk += Threads) {
                const coord o = origin(chunk);
                const i32 by_mn = o.row - first.row, mn_left = r.room - by_mn, k_left = s.k_end - k - o.col;
                const i32 valid = mn_left <= 0 || k_left <= 0 ? 0 : min(along_mn ? mn_left : k_left, vector);
                copy_part<Width>(stage + Stage::offset(o.row, o.col),
                                 from + along_row(s, by_mn) + along_col(s, o.col - first.col),
                                 valid * i32(sizeof(Element)));
            }
        }
    }
    PG_DEVICE static void commit(registers&, u8*, i32) {}

  private:
    // A thread's chunks of a step of K; zeros for what is `k_room` or more further along K, or past the end along mn.
    // InPart: some of the elements of a chunk may be.
    template <bool InPart>
    PG_DEVICE static void copy_chunks(registers& r, const tile_source& s, u8* stage, i32 k, i32 thread, i32 k_room) {
        const Element* from = r.from + along_col(s, k);
        PG_UNROLL
        for (i32 i = 0; i < rounds; i++) {
            if (chunks % Threads != 0 && thread + i * Threads >= chunks) break;
            const coord first = bitwise ? coord{0, 0} : origin(thread);
            const coord o = bitwise ? origin(i * Threads) : origin(thread + i * Threads);
            const i32 by_mn = o.row - first.row, by_k = o.col - first.col;
            u8* to = stage + (bitwise ? Stage::moved(r.to, by_mn, by_k) : Stage::offset(o.row, o.col));
            const Element* chunk = from + along_row(s, by_mn) + along_col(s, by_k);
            if constexpr (InPart) {
                static_assert(along_mn);
                const i32 valid = by_k < k_room ? max(0, min(vector, r.room - by_mn)) : 0;
                copy_part<Width>(to, chunk, valid * i32(sizeof(Element)));
            } else {
                copy_chunk<Width>(to, chunk, by_mn < r.room && by_k < k_room);
            }
        }
    }

    // Elements to rows and columns further; one of the two strides is 1.
    PG_DEVICE static i64 along_row(const tile_source& s, i32 rows) { return along_mn ? rows : i64(rows) * s.row; }
    PG_DEVICE static i64 along_col(const tile_source& s, i32 cols) {
        return Global == major::k ? cols : i64(cols) * s.col;
    }
};

}  // namespace pg::arch
