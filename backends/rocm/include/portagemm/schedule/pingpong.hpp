// The CDNA main loop: all waves load and compute. Two stages of LDS: while one is computed, the next tile is on its way
// from global memory into registers, and from there it goes into the other stage.
//
// Roles do not pay here: a wave's registers cannot be given to another one, so a loader's would lie idle. One barrier a
// step of K is enough, and loads stay in flight across it (they wait at the commit, by vmcnt, not at the barrier).
#pragma once
#include <portagemm/schedule/single_buffer.hpp>

namespace pg {

template <int Threads, int MinBlocks = 1>
struct pingpong {
    static constexpr i32 stages = 2, cluster = 1, split = 1, threads = Threads, min_blocks = MinBlocks;
    static constexpr scope readers = scope::block;
    struct sync {};  // needs no barrier objects

    struct role : all_waves {
        // Compute step kt in stage S; meanwhile bring the next one into the other stage. Step -1 has nothing to
        // compute.
        template <i32 S, class Tile>
        PG_DEVICE void step(Tile& tile, i32 kt, i32 k_tiles) {
            const bool more = kt + 1 < k_tiles;
            if (more) tile.fetch(1 - S, kt + 1, no_token{});
            if (kt >= 0) tile.compute(S);
            // NOTE: no barrier before this commit. The other stage was last read in step kt - 1, and the publish at
            // that step's end came after every wave had read it.
            if (more) {
                tile.commit(1 - S);
                publish<scope::block>(tile.stage_a(1 - S), *this);
            }
        }

        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            // Two steps a turn, so that a stage's addresses are constants.
            for (i32 kt = -1; kt < k_tiles; kt += 2) {
                step<1>(tile, kt, k_tiles);
                if (kt + 1 < k_tiles) step<0>(tile, kt + 1, k_tiles);
            }
            barrier<scope::block>(*this);  // the next work's first commit meets no reader
        }
    };

    template <class Body>
    PG_DEVICE static void run(sync&, Body body) {
        role all{{vendor::thread()}};
        body(all);
    }
};

}  // namespace pg
