// Global memory -> registers -> shared stage, for lines of a 16-bit operand that start on no 16-byte boundary: a thread
// loads the two aligned 16-byte words that hold its 16-byte chunk, shifts them together in registers, and stores whole
// chunks. Narrow accesses would cost as many instructions as the matrix unit has time for.
#pragma once
#include <portagemm/copy.hpp>

namespace pg {

// Natural: bytes of the widest access that address and strides allow, which bounds the shifts there can be.
//
// Rows or columns past mn_end hold anything: no product of theirs is stored. Elements past k_end become zeros. No byte is
// read before element (0, 0) of the matrix nor behind its last one; what lies between its lines may be. Strides are not
// negative, and k is a multiple of 8.
template <class Element, class Stage, major Global, int Natural, int Threads>
struct realign_copy {
    using element = Element;
    using stage = Stage;
    static constexpr bool asynchronous = false;
    static constexpr bool along_mn = Global == major::mn;
    static_assert(sizeof(Element) == 2 && same_type<Element, typename Stage::element>, "shifts 16-bit elements");
    static_assert(Global != major::strided && along_mn == (Stage::order == major::mn), "a chunk is contiguous");
    static_assert(Natural == 2 || Natural == 4 || Natural == 8);
    static constexpr i32 width = 16, vector = width / i32(sizeof(Element));
    static constexpr i32 chunks_k = along_mn ? Stage::k : Stage::k / vector;
    static constexpr i32 chunks_mn = along_mn ? Stage::mn / vector : Stage::mn;
    static constexpr i32 chunks = chunks_k * chunks_mn;
    static constexpr i32 rounds = chunks / Threads;
    static constexpr i32 in_line = along_mn ? chunks_mn : chunks_k;
    static_assert(chunks % Threads == 0 && is_power_of_two(Threads) && is_power_of_two(in_line));
    // Eight lines, and steps of K, lie multiples of 16 bytes apart: all chunks of a thread are shifted alike.
    static_assert(Threads % (in_line * vector) == 0 && Stage::k % vector == 0);
    // Words that a chunk can reach into, in 32-bit registers.
    static constexpr i32 loaded = 8;

    struct registers {
        u32 word[rounds][loaded];
        const u8* from;  // aligned word in which the thread's first chunk begins at k = 0
        i32 shift;       // bytes from there to the chunk
        i32 room;        // elements from its first chunk to the operand's end along mn
        i32 to;          // offset of its first chunk in a stage
        i32 last;        // steps up to this k are inside
        i32 k;           // step that is held, where the caller does not say
        tile_source source;
    };

    PG_HD static constexpr coord origin(i32 chunk) {
        if constexpr (along_mn) {
            return {(chunk % chunks_mn) * vector, chunk / chunks_mn};
        } else {
            return {chunk / chunks_k, (chunk % chunks_k) * vector};
        }
    }

    // Once a tile, before any fetch.
    PG_DEVICE static void begin(registers& r, const tile_source& s, i32 thread) {
        const coord o = origin(thread);
        const u8* matrix = static_cast<const u8*>(s.ptr);
        const u8* chunk = matrix + distance(s, s.mn + o.row, o.col);
        r.shift = i32(reinterpret_cast<u64>(chunk) % width);
        r.from = chunk - r.shift;
        r.room = s.mn_end - s.mn - o.row;
        r.to = Stage::offset(o.row, o.col);
        r.source = s;
        // At k = 0 two words from the tile's last element on are read at most: how much further may k go?
        const i32 lines = along_mn ? ceil_div(s.mn_end - s.mn, vector) * vector : s.mn_end - s.mn;
        const i64 room = size(s) - distance(s, s.mn + min(Stage::mn, lines) - 1, Stage::k - 1) - 2 * width;
        const i64 step = distance(s, 0, 1);
        r.last = room < 0 || step == 0 ? 0 : i32(min(i64(s.k_end - Stage::k), room / step));
        PG_UNROLL
        for (i32 i = 0; i < rounds; i++) load(r.word[i], matrix, false, false);
    }

    // Whether all that a step reads lies within the matrix, and nothing of it past k_end: the same for all threads. The
    // first one may begin in a word that is not all the matrix' own.
    PG_DEVICE static bool inside(const registers& r, const tile_source&, i32 k) { return inside(r, k); }
    PG_DEVICE static bool inside(const registers& r, i32 k) { return k > 0 && k <= r.last; }

    PG_DEVICE static void fetch(registers& r, const tile_source&, u8*, i32 k, i32, inside_step) {
        const u8* from = r.from + distance(r.source, 0, k);
        PG_UNROLL
        for (i32 i = 0; i < rounds; i++) {
            const coord by = origin(i * Threads);
            if (by.row < r.room) load(r.word[i], from + distance(r.source, by.row, by.col), true, true);
        }
    }

    PG_DEVICE static void commit(const registers& r, u8* stage, i32, i32, inside_step) {
        PG_UNROLL
        for (i32 i = 0; i < rounds; i++) {
            bytes<width> chunk;
            shifted(chunk, r.word[i], r.shift);
            store(chunk, r, stage, i);
        }
    }

    PG_DEVICE static void fetch(registers& r, const tile_source&, u8*, i32 k, i32 thread, no_token) {
        r.k = k;
        if (inside(r, k)) {
            fetch(r, r.source, nullptr, k, thread, inside_step{});
            return;
        }
        PG_UNROLL
        for (i32 i = 0; i < rounds; i++) {
            const part p = part_of(r, k, i, thread);
            const bool any = p.valid > 0 && p.whole_words;
            load(r.word[i], p.word, any, any && p.two);
        }
    }

    PG_DEVICE static void commit(const registers& r, u8* stage, i32 thread) {
        commit(r, stage, r.k, thread, no_token{});
    }

    // What was fetched of the step at k.
    PG_DEVICE static void commit(const registers& r, u8* stage, i32 k, i32 thread, no_token) {
        if (inside(r, k)) {
            commit(r, stage, k, thread, inside_step{});
            return;
        }
        PG_UNROLL
        for (i32 i = 0; i < rounds; i++) {
            bytes<width> chunk;
            shifted(chunk, r.word[i], r.shift);
            keep(chunk, part_of(r, k, i, thread).valid);
            store(chunk, r, stage, i);
        }
        // Chunks at the matrix' ends, whose words are not all its own: element by element.
        PG_ROLLED
        for (i32 i = 0; i < rounds; i++) {
            const part p = part_of(r, k, i, thread);
            if (p.valid == 0 || p.whole_words) continue;
            const auto* from = reinterpret_cast<const Element*>(p.word + r.shift);
            const coord o = origin(thread + i * Threads);
            PG_UNROLL
            for (i32 v = 0; v < vector; v++) {
                if (v < p.valid) {
                    const i32 at = along_mn ? Stage::offset(o.row + v, o.col) : Stage::offset(o.row, o.col + v);
                    *reinterpret_cast<Element*>(stage + at) = *vendor::in_global(from + v);
                }
            }
        }
    }

  private:
    // What a chunk has of the operand.
    struct part {
        const u8* word;    // the aligned word it begins in
        i32 valid;         // elements
        bool two;          // they reach into the next word
        bool whole_words;  // these words are the matrix' own
    };

    PG_DEVICE static part part_of(const registers& r, i32 k, i32 round, i32 thread) {
        const coord by = origin(round * Threads), o = origin(thread);
        const i32 mn_left = r.room - by.row, k_left = r.source.k_end - k - o.col - by.col;
        part p;
        p.valid = mn_left <= 0 || k_left <= 0 ? 0 : min(along_mn ? mn_left : k_left, vector);
        p.word = r.from + distance(r.source, by.row, k + by.col);
        p.two = r.shift + p.valid * i32(sizeof(Element)) > width;
        const u8* matrix = static_cast<const u8*>(r.source.ptr);
        p.whole_words = p.word >= matrix && p.word + (p.two ? 2 * width : width) <= matrix + size(r.source);
        return p;
    }

    // Bytes from an element to the one so many rows and columns further; one of the two strides is 1.
    PG_DEVICE static i64 distance(const tile_source& s, i32 rows, i32 cols) {
        return (along_mn ? rows + i64(cols) * s.col : i64(rows) * s.row + cols) * i64(sizeof(Element));
    }
    // Bytes from the matrix' first to its last.
    PG_DEVICE static i64 size(const tile_source& s) {
        return distance(s, s.mn_end - 1, s.k_end - 1) + i64(sizeof(Element));
    }

    PG_DEVICE static void load(u32 (&word)[loaded], const u8* from, bool first, bool second) {
        const auto* at = reinterpret_cast<const bytes<width>*>(from);
        bytes<width> low{}, high{};
        if (first) low = *vendor::in_global(at);
        if (second) high = *vendor::in_global(at + 1);
        PG_UNROLL
        for (i32 i = 0; i < 4; i++) {
            word[i] = low.word[i];
            word[4 + i] = high.word[i];
        }
    }

    // 16 bytes from `shift` on, a multiple of Natural: by two words, by one, by half of one.
    PG_DEVICE static void shifted(bytes<width>& to, const u32 (&word)[loaded], i32 shift) {
        u32 by_two[6], by_one[5];
        PG_UNROLL
        for (i32 i = 0; i < 6; i++) by_two[i] = shift & 8 ? word[i + 2] : word[i];
        PG_UNROLL
        for (i32 i = 0; i < 5; i++) by_one[i] = Natural < 8 && shift & 4 ? by_two[i + 1] : by_two[i];
        PG_UNROLL
        for (i32 i = 0; i < 4; i++) {
            const u64 pair = u64(by_one[i + 1]) << 32 | by_one[i];
            to.word[i] = Natural < 4 ? u32(pair >> (shift & 2) * 8) : by_one[i];
        }
    }

    // Zeros behind the first `valid` elements.
    PG_DEVICE static void keep(bytes<width>& chunk, i32 valid) {
        PG_UNROLL
        for (i32 i = 0; i < 4; i++) {
            chunk.word[i] = valid >= 2 * i + 2 ? chunk.word[i] : valid == 2 * i + 1 ? chunk.word[i] & 0xffff : 0;
        }
    }

    PG_DEVICE static void store(const bytes<width>& chunk, const registers& r, u8* stage, i32 round) {
        const coord by = origin(round * Threads);
        *reinterpret_cast<bytes<width>*>(stage + Stage::moved(r.to, by.row, by.col)) = chunk;
    }
};

}  // namespace pg
