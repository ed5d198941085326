// Eight waves, two on each of a unit's four SIMDs, half a step apart: while one multiplies, the other reads its operands
// and brings the next tile. The matrix unit has the higher priority and never waits for both.
//
// Step kt of a wave is two phases, each closed by a barrier:
//   memory   fragments of step kt out of stage S; step kt + 1 from registers into the other stage; loads of kt + 2
//   compute  the matrix instructions of step kt
// The second four waves are one phase late. The other stage was last read in the memory phases of step kt - 1, both over
// by then; and what either group writes there is read one barrier later at the earliest.
#pragma once
#include <portagemm/schedule/two_stages.hpp>

namespace pg {

template <int Threads, int MinBlocks = 1>
struct pingpong : two_stages<Threads> {
    using base = two_stages<Threads>;
    using typename base::sync;
    static constexpr i32 min_blocks = MinBlocks;
    static_assert(base::waves == 8, "pingpong: two waves on each of four SIMDs");

    struct role : base::role {
        // A step in stage S, where steps kt + 1 and kt + 2 are whole and nothing in this one needs care.
        template <i32 S, class Tile>
        PG_DEVICE void fast_step(Tile& tile, typename base::role::template cursors<Tile>& next) {
            typename Tile::fragments f[Tile::k_steps];
            PG_UNROLL
            for (i32 kk = 0; kk < Tile::k_steps; kk++) tile.read(f[kk], S, kk);
            vendor::keep_order();  // reads first: they take longest, and the commit waits for memory
            this->commit_whole(tile, 1 - S);
            this->fetch_whole(tile, next);
            publish<scope::block>(tile.stage_a(1 - S), *this);
            vendor::priority<1>();
            PG_UNROLL
            for (i32 kk = 0; kk < Tile::k_steps; kk++) this->multiply(tile, f[kk], kk);
            vendor::priority<0>();
            barrier<scope::block>(*this);
        }

        // As many fast steps as there are; returns the step after them. All waves take as many.
        template <class Tile>
        PG_DEVICE i32 fast_steps(Tile& tile, i32 kt, i32 whole) {
            const i32 late = vendor::uniform(this->thread / (4 * vendor::wave_size));
            kt = vendor::uniform(kt);
            auto next = this->steps_from(tile, kt + 2);
            if (late) barrier<scope::block>(*this);
            while (kt + 3 < whole && !this->template suspects<Tile>(0)) {
                fast_step<0>(tile, next);
                kt++;
                if (this->template suspects<Tile>(1)) break;
                fast_step<1>(tile, next);
                kt++;
            }
            if (!late) barrier<scope::block>(*this);
            return kt;
        }

        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            k_tiles = vendor::uniform(k_tiles);
            this->begin(tile, k_tiles);
            const i32 whole = this->whole_steps(tile);
            for (i32 kt = 0; kt < k_tiles;) {
                if (kt + 3 < whole) kt = fast_steps(tile, kt, whole);
                this->step(tile, kt++, k_tiles);
                if (kt % 2 == 1 && kt < k_tiles) this->step(tile, kt++, k_tiles);
            }
        }
    };

    template <class Body>
    PG_DEVICE static void run(sync& flags, Body body) {
        base::template run_role<role>(flags, body);
    }
};

}  // namespace pg
