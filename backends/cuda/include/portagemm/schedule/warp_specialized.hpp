// sm_90a: one thread feeds stages by tensor copies, two or three warpgroups multiply them. Neither ever waits for the
// whole block: a stage's `full` barrier counts its bytes, its `empty` barrier its readers in the cluster.
#pragma once
#include <portagemm/arch/sm90.hpp>

namespace pg {

template <int Stages, int Consumers, int Cluster>
struct warp_specialized {
    static_assert(Consumers >= 1 && Consumers <= 3);
    static constexpr i32 stages = Stages, cluster = Cluster, min_blocks = 1;
    static constexpr i32 threads = 128 * (Consumers + 1);
    static constexpr scope readers = scope::pair;
    // Registers of a loader and of a consumer thread: multiples of 8 whose sum over the block fits the 64 K of an SM.
    static constexpr i32 loader_registers = Consumers == 3 ? 32 : 40;
    static constexpr i32 consumer_registers = Consumers == 3 ? 160 : 232;

    struct sync {
        arch::transaction_barrier full[Stages], empty[Stages];
    };

    // Place in the ring of stages. It runs on from tile to tile, so that the loader is ahead across tiles too.
    struct ring {
        i32 stage = 0;
        u32 phase = 0;
        PG_DEVICE void advance() {
            if (++stage == Stages) {
                stage = 0;
                phase ^= 1;
            }
        }
    };

    struct loader {
        static constexpr bool loads = true, computes = false, whole_block = false;
        i32 thread;
        sync& barriers;
        ring at;

        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            const i32 rank = vendor::cluster_rank();
            for (i32 kt = 0; kt < k_tiles; kt++) {
                barriers.empty[at.stage].wait(at.phase ^ 1);
                barriers.full[at.stage].arrive_expecting(Tile::stage_bytes);
                tile.fetch(at.stage, kt, arch::copy_token{&barriers.full[at.stage], rank});
                at.advance();
            }
        }
    };

    struct consumer {
        static constexpr bool loads = false, computes = true, whole_block = false;
        i32 thread;  // among the consumers
        sync& barriers;
        ring at;

        // Every consumer tells every block of the cluster: each multicasts into all.
        PG_DEVICE void release(i32 stage) {
            if (thread % 128 < Cluster) barriers.empty[stage].arrive_at(thread % 128);
        }

        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            i32 last = -1;
            for (i32 kt = 0; kt < k_tiles; kt++) {
                barriers.full[at.stage].wait(at.phase);
                arch::begin_matrix_group(tile.accumulator);
                tile.compute(at.stage);
                arch::close_matrix_group();
                arch::wait_matrix_groups<1>();  // the step before has been read
                if (last >= 0) release(last);
                last = at.stage;
                at.advance();
            }
            arch::wait_matrix_groups<0>();
            if (last >= 0) release(last);
        }
    };

    PG_DEVICE static void meet() {
        if constexpr (Cluster > 1) {
            arch::cluster_barrier();
        } else {
            vendor::barrier(int(scope::block));
        }
    }

    template <class Body>
    PG_DEVICE static void run(sync& barriers, Body body) {
        if (vendor::thread() == 0) {
            PG_UNROLL
            for (i32 s = 0; s < Stages; s++) {
                barriers.full[s].init(1);
                barriers.empty[s].init(Consumers * Cluster);
            }
            arch::fence_barrier_init();
        }
        meet();
        // NOTE: each warpgroup's role is one branch of this if; otherwise ptxas ignores the register counts.
        if (vendor::thread() < 128) {
            if constexpr (Consumers > 1) arch::give_registers<loader_registers>();
            if (vendor::thread() == 0) {
                loader role{0, barriers, {}};
                body(role);
            }
        } else {
            if constexpr (Consumers > 1) arch::take_registers<consumer_registers>();
            consumer role{vendor::thread() - 128, barriers, {}};
            body(role);
        }
        // A block must not leave while another of its cluster may still arrive at its barriers.
        if constexpr (Cluster > 1) meet();
    }
};

}  // namespace pg
