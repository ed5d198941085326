// sm_80 and up: some waves copy, the others compute. Neither ever waits for the whole block: a stage's `full` barrier counts
// the loading threads whose copies have landed, its `empty` barrier the computing waves that have read it.
#pragma once
#include <portagemm/arch/mbarrier.hpp>
#include <portagemm/arch/sm80.hpp>
#include <portagemm/copy.hpp>
#include <portagemm/schedule/stage_ring.hpp>
#include <portagemm/tile.hpp>

namespace pg {

// Registers cannot move between waves before sm_90a: all waves hold as many as a computing one needs, and an SM's register
// file is dealt in quarters, a quarter to every fourth wave. So nine to twelve waves an SM have 168 registers each.
template <int Stages, int ComputeThreads, int Loaders, int MinBlocks>
struct split_multistage {
    static_assert(Stages >= 2 && Loaders >= 1);
    static constexpr i32 stages = Stages, cluster = 1, split = 1, min_blocks = MinBlocks;
    static constexpr i32 compute_threads = ComputeThreads, load_threads = Loaders * vendor::wave_size;
    static constexpr i32 threads = compute_threads + load_threads;
    static constexpr scope readers = scope::pair;

    struct sync {
        arch::arrival_barrier full[Stages], empty[Stages];
    };

    struct loader {
        static constexpr bool loads = true, computes = false, whole_block = false;
        i32 thread;  // among the loaders
        sync& barriers;
        stage_ring<Stages> at;

        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            for (i32 kt = 0; kt < k_tiles; kt++) {
                auto& full = barriers.full[at.stage];
                barriers.empty[at.stage].wait(at.phase ^ 1);
                tile.copy(at.stage, kt);
                if constexpr (Tile::asynchronous) {
                    full.arrive_after_copies();
                } else {
                    full.await_copies();  // of the operand that is copied asynchronously, if one is
                    full.arrive();
                }
                at.advance();
            }
        }
    };

    struct computer {
        static constexpr bool loads = false, computes = true, whole_block = false;
        i32 thread;  // among the computing threads
        sync& barriers;
        stage_ring<Stages> at;

        PG_DEVICE void release(i32 stage) {
            barrier<scope::wave>(*this);  // all lanes have read
            if (thread % vendor::wave_size == 0) barriers.empty[stage].arrive();
        }

        // A step's fragments are read while the products of the step before run, across stages too.
        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            if (k_tiles == 0) return;
            constexpr i32 last = Tile::k_steps - 1;
            typename Tile::fragments f[2];
            barriers.full[at.stage].wait(at.phase);
            tile.read(f[0], at.stage, 0);
            for (i32 kt = 0; kt < k_tiles; kt++) {
                PG_UNROLL
                for (i32 kk = 0; kk < last; kk++) {
                    tile.read(f[(kk + 1) % 2], at.stage, kk + 1);
                    tile.mma(f[kk % 2], kk);
                }
                const i32 read = at.stage;
                at.advance();
                if (kt + 1 < k_tiles) {
                    barriers.full[at.stage].wait(at.phase);
                    tile.read(f[(last + 1) % 2], at.stage, 0);
                }
                tile.mma(f[last % 2], last);
                release(read);
                if constexpr (last % 2 == 0) f[0] = f[1];
            }
        }
    };

    template <class Body>
    PG_DEVICE static void run(sync& barriers, Body body) {
        if (vendor::thread() == 0) {
            PG_UNROLL
            for (i32 s = 0; s < Stages; s++) {
                barriers.full[s].init(load_threads);
                barriers.empty[s].init(compute_threads / vendor::wave_size);
            }
        }
        vendor::barrier(int(scope::block));
        if (vendor::thread() >= compute_threads) {
            loader role{vendor::thread() - compute_threads, barriers, {}};
            body(role);
            arch::close_copy_group();
            arch::wait_copy_groups<0>();  // shared memory must outlive the copies into it
        } else {
            computer role{vendor::thread(), barriers, {}};
            body(role);
        }
    }
};

}  // namespace pg
