// The reference main loop, for every arch and the host: all waves copy a stage, meet, compute it, meet again.
#pragma once
#include <portagemm/copy.hpp>
#include <portagemm/tile.hpp>

namespace pg {

// All waves of the block in every step: the role of the schedules that do not split roles.
struct all_waves {
    static constexpr bool loads = true, computes = true, whole_block = true;
    i32 thread;
};

template <int Threads>
struct single_buffer {
    static constexpr i32 stages = 1, cluster = 1, split = 1, threads = Threads, min_blocks = 1;
    static constexpr scope readers = scope::block;
    struct sync {};  // needs no barrier objects

    struct role : all_waves {
        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            for (i32 kt = 0; kt < k_tiles; kt++) {
                tile.fetch(0, kt, no_token{});
                tile.commit(0);
                publish<scope::block>(tile.stage_a(0), *this);
                tile.compute(0);
                barrier<scope::block>(*this);  // nobody overwrites a stage that is still read
            }
        }
    };

    template <class Body>
    PG_DEVICE static void run(sync&, Body body) {
        role all{{vendor::thread()}};
        body(all);
    }
};

}  // namespace pg
