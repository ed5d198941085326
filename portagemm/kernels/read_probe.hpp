// The read-only probe: how fast can these bytes be read at all? Nothing is computed but what keeps the loads alive.
#pragma once
#include <portagemm/core.hpp>

namespace pg {

struct read_params {
    const void* data;
    u32* sink;  // never written in practice: see below
    i64 count;  // 16-byte pieces
};

// Each block reads pieces of Threads * Unroll * 16 contiguous bytes, Unroll loads of a thread in flight at once, and
// goes on by the whole grid. A grid that covers the data reads one piece a block; a smaller one is persistent.
template <int Threads, int Unroll>
PG_DEVICE void read_probe(const read_params& p) {
    constexpr i64 piece = i64(Threads) * Unroll;
    const bytes<16>* data = static_cast<const bytes<16>*>(p.data);
    const i64 thread = vendor::thread();
    u32 seen = 0;
    i64 base = vendor::block() * piece;
    for (; base + piece <= p.count; base += vendor::blocks() * piece) {
        bytes<16> value[Unroll];
        PG_UNROLL
        for (i32 u = 0; u < Unroll; u++) value[u] = data[base + u * Threads + thread];
        PG_UNROLL
        for (i32 u = 0; u < Unroll; u++) {
            seen ^= value[u].word[0] ^ value[u].word[1] ^ value[u].word[2] ^ value[u].word[3];
        }
    }
    for (i64 i = base + thread; i < p.count && i < base + piece; i += Threads) seen ^= data[i].word[0];
    // One value in 2^32 writes; the compiler cannot know it never comes, so every load must be made.
    if (seen == 0x7e57ab1e) *p.sink = seen;
}

}  // namespace pg
