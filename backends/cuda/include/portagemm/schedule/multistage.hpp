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
        // The oldest copies under way have landed once at most Stages - 2 newer groups are pending. Then they are visible to
        // all waves, and all waves have read the stage before, which is overwritten next.
        template <class Tile>
        PG_DEVICE void land(Tile& tile, i32 s) {
            arch::wait_copy_groups<Stages - 2>();
            publish<scope::block>(tile.stage_a(s), *this);
        }

        PG_DEVICE static i32 next(i32 s) { return s + 1 == Stages ? 0 : s + 1; }

        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            PG_ROLLED
            for (i32 s = 0; s < Stages - 1; s++) {
                if (s < k_tiles) tile.copy(s, s);
                arch::close_copy_group();
            }
            if constexpr (Tile::asynchronous) {
                overlapped(tile, k_tiles);
            } else {
                stage_by_stage(tile, k_tiles);
            }
            // The next tile's first copies overwrite stages that slower waves may still read.
            arch::wait_copy_groups<0>();
            barrier<scope::block>(*this);
        }

        // A step's fragments are read while the products of the step before run, across stages too.
        template <class Tile>
        PG_DEVICE void overlapped(Tile& tile, i32 k_tiles) {
            constexpr i32 last = Tile::k_steps - 1;
            typename Tile::fragments f[2];
            i32 current = 0, ahead = Stages - 1;
            land(tile, current);
            tile.read(f[0], current, 0);
            for (i32 kt = 0; kt < k_tiles; kt++) {
                const bool more = kt + Stages - 1 < k_tiles;
                PG_UNROLL
                for (i32 kk = 0; kk < last; kk++) {
                    tile.read(f[(kk + 1) % 2], current, kk + 1);
                    if (kk == 0 && more) tile.fetch(ahead, kt + Stages - 1, no_token{});
                    tile.mma(f[kk % 2], kk);
                }
                if (last == 0 && more) tile.fetch(ahead, kt + Stages - 1, no_token{});
                arch::close_copy_group();
                ahead = current;
                current = next(current);
                land(tile, current);
                tile.read(f[(last + 1) % 2], current, 0);  // after the last stage: what nobody uses
                tile.mma(f[last % 2], last);
                if constexpr (last % 2 == 0) f[0] = f[1];
            }
        }

        // Copies through registers leave none for fragments of a second step; and where they are many, none for products
        // between fetch and commit.
        template <class Tile>
        PG_DEVICE void stage_by_stage(Tile& tile, i32 k_tiles) {
            constexpr i32 carried =
                Tile::template carried_by<typename Tile::copy_a>() + Tile::template carried_by<typename Tile::copy_b>();
            constexpr bool at_once = Tile::sums + carried > 144;
            i32 current = 0, ahead = Stages - 1;
            for (i32 kt = 0; kt < k_tiles; kt++) {
                land(tile, current);
                const bool more = kt + Stages - 1 < k_tiles;
                if constexpr (at_once) {
                    if (more) tile.copy(ahead, kt + Stages - 1);
                    tile.compute(current);
                } else {
                    if (more) tile.fetch(ahead, kt + Stages - 1, no_token{});
                    tile.compute(current);
                    if (more) tile.commit(ahead);
                }
                arch::close_copy_group();
                current = next(current);
                ahead = next(ahead);
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
