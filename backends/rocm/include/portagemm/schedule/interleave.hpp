// One wave of a block a SIMD, or waves that need not agree: the matrix instructions of a step are interleaved with the
// copies of the next ones, so that both units are busy from within one wave. One barrier a step of K.
#pragma once
#include <portagemm/schedule/two_stages.hpp>

namespace pg {

template <int Threads, int MinBlocks = 1>
struct interleave : two_stages<Threads> {
    using base = two_stages<Threads>;
    using typename base::sync;
    static constexpr i32 min_blocks = MinBlocks;

    struct role : base::role {
        // A step in stage S. Steps kt + 1 and kt + 2 are whole, and nothing in this one needs care: one block of code
        // without a branch.
        template <i32 S, class Tile>
        PG_DEVICE void fast_step(Tile& tile, typename base::role::template cursors<Tile>& next) {
            // Operands of the next instructions are read ahead where registers allow: a wave of 32 lanes holds twice as many
            // for the same tile (WMMA's operands even four times), and other waves of its SIMD fill its waits.
            constexpr i32 ahead = vendor::wave_size == 64 ? 1 : 0;
            typename Tile::fragments f[1 + ahead];
            if (ahead) tile.read(f[0], S, 0);
            PG_UNROLL
            for (i32 kk = 0; kk < Tile::k_steps; kk++) {
                if (kk + ahead < Tile::k_steps) tile.read(f[(kk + ahead) % (1 + ahead)], S, kk + ahead);
                if (kk == 0) {
                    // NOTE: no barrier before this commit. The other stage was last read in step kt - 1, and the publish
                    // at that step's end came after every wave had read it.
                    this->commit_whole(tile, 1 - S);
                    this->fetch_whole(tile, next);
                }
                this->multiply(tile, f[kk % (1 + ahead)], kk);
                if (!ahead) vendor::keep_order();
            }
            if (ahead) spread<Tile>();
            // NOTE: without these the scheduler that spreads moves the barrier above this step's writes of the LDS, and may
            // move the next step's reads above it.
            vendor::keep_order();
            publish<scope::block>(tile.stage_a(1 - S), *this);
            vendor::keep_order();
        }

        // After every few matrix instructions something else may issue: LDS reads first, for the next instructions.
        template <class Tile>
        PG_DEVICE static void spread() {
            constexpr i32 products = Tile::tile::atoms_m * Tile::tile::atoms_n * Tile::k_steps * chain<Tile>();
            PG_UNROLL
            for (i32 i = 0; i < products / 2; i++) vendor::spread_step();
        }
        template <class Tile>
        static constexpr i32 chain() {
            if constexpr (requires { Tile::atom::chain; }) return Tile::atom::chain;
            return 1;
        }

        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            k_tiles = vendor::uniform(k_tiles);
            this->begin(tile, k_tiles);
            const i32 whole = this->whole_steps(tile);
            for (i32 kt = 0; kt < k_tiles;) {
                kt = vendor::uniform(kt);
                auto next = this->steps_from(tile, kt + 2);
                // Two steps a turn, so that a stage's addresses are constants.
                while (kt + 3 < whole && !this->template suspects<Tile>(0)) {
                    fast_step<0>(tile, next);
                    kt++;
                    if (this->template suspects<Tile>(1)) break;
                    fast_step<1>(tile, next);
                    kt++;
                }
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
