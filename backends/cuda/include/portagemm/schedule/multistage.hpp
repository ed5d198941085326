// sm_80 and up: all waves copy, all waves compute; copies run ahead by Stages - 1 steps of K.
#pragma once
#include <portagemm/arch/sm80.hpp>
#include <portagemm/schedule/single_buffer.hpp>

namespace pg {

template <int Stages, int Threads, int MinBlocks>
struct multistage {
    static_assert(Stages >= 2);
    static constexpr i32 stages = Stages, cluster = 1, split = 1, threads = Threads, min_blocks = MinBlocks;
    static constexpr scope readers = scope::block;
    struct sync {};  // completion is counted in copy groups, which need no object

    struct role : all_waves {
        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            PG_ROLLED
            for (i32 s = 0; s < Stages - 1; s++) {
                if (s < k_tiles) {
                    tile.fetch(s, s, no_token{});
                    tile.commit(s);
                }
                arch::close_copy_group();
            }
            i32 current = 0, ahead = Stages - 1;
            for (i32 kt = 0; kt < k_tiles; kt++) {
                // Step kt has landed once at most the Stages - 2 newer groups are pending.
                arch::wait_copy_groups<Stages - 2>();
                // Visible to all waves; and all have left the stage that is overwritten next.
                publish<scope::block>(tile.stage_a(current), *this);
                const bool more = kt + Stages - 1 < k_tiles;
                if (more) tile.fetch(ahead, kt + Stages - 1, no_token{});
                tile.compute(current);
                if (more) tile.commit(ahead);
                arch::close_copy_group();
                current = current + 1 == Stages ? 0 : current + 1;
                ahead = ahead + 1 == Stages ? 0 : ahead + 1;
            }
            // The next tile's first copies overwrite stages that slower waves may still read.
            arch::wait_copy_groups<0>();
            barrier<scope::block>(*this);
        }
    };

    template <class Body>
    PG_DEVICE static void run(sync&, Body body) {
        role all{{vendor::thread()}};
        body(all);
    }
};

}  // namespace pg
