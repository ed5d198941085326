// sm_90a: one thread feeds stages by tensor copies, up to three warpgroups multiply them. Neither ever waits for the
// whole block: a stage's `full` barrier counts its bytes, its `empty` barrier its readers in the cluster.
#pragma once
#include <portagemm/arch/sm90.hpp>
#include <portagemm/schedule/stage_ring.hpp>

namespace pg {

// Cluster: blocks that work on neighbouring tiles along M and multicast B to each other. Split: blocks of a cluster that
// share one tile's K; split_store sums them. Resident: blocks that an SM holds at once; with one block it has all
// registers, which then move from the loader to the consumers.
template <int Stages, int Consumers, int Cluster, int Split = 1, int Resident = 1>
struct warp_specialized {
    static_assert(arch::is_sm90a || Stages < 0, "warp_specialized needs setmaxnreg and tensor copies: sm_90a");
    static_assert(Consumers >= 1 && Consumers <= 3 && (Cluster == 1 || Split == 1));
    static constexpr i32 stages = Stages, cluster = Cluster, split = Split, min_blocks = Resident;
    static constexpr i32 compute_threads = 128 * Consumers;
    static constexpr bool moves_registers = Resident == 1 && Consumers > 1;
    static constexpr i32 threads = compute_threads + (moves_registers ? 128 : 32);
    static constexpr scope readers = scope::pair;
    // Registers of a loader and of a consumer thread: multiples of 8 whose sum over the block fits the 64 K of an SM.
    static constexpr i32 loader_registers = Consumers == 3 ? 32 : 40;
    static constexpr i32 consumer_registers = Consumers == 3 ? 160 : 232;

    struct sync {
        arch::transaction_barrier full[Stages], empty[Stages];
        arch::transaction_barrier partials;  // counts the bytes of the other blocks' sums (Split > 1)
    };

    using ring = stage_ring<Stages>;

    struct loader {
        static constexpr bool loads = true, computes = false, whole_block = false;
        i32 thread;
        sync& barriers;
        ring at;
        bool first = true;

        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            const i32 rank = vendor::cluster_rank();
            i32 kt = 0;
            if (first) {
                first = false;
                kt = start(tile, min(k_tiles, Stages), rank);
            }
            PG_ROLLED  // one thread, long waits: unrolled copies would only crowd the instruction cache
                for (; kt < k_tiles; kt++) {
                barriers.empty[at.stage].wait(at.phase ^ 1);
                barriers.full[at.stage].arrive_expecting(Tile::stage_bytes);
                tile.fetch(at.stage, kt, arch::copy_token{&barriers.full[at.stage], rank});
                at.advance();
            }
        }

        // A block must not leave while another of its cluster may still arrive at its barriers: until every stage has been
        // released, by all consumers of the cluster.
        PG_DEVICE void drain() {
            PG_ROLLED
            for (i32 s = 0; s < Stages; s++) {
                barriers.empty[at.stage].wait(at.phase ^ 1);
                at.advance();
            }
        }

        // The first fill of the ring: nobody has to be waited for but the kernel before this one, and that not for
        // operands which no kernel in flight writes.
        template <class Tile>
        PG_DEVICE i32 start(Tile& tile, i32 count, i32 rank) {
            const bool early_a = tile.args.copies.a_constant, early_b = tile.args.copies.b_constant;
            PG_ROLLED
            for (i32 s = 0; s < count; s++) {
                const arch::copy_token token{&barriers.full[s], rank};
                barriers.full[s].arrive_expecting(Tile::stage_bytes);
                if (early_a) tile.fetch_a(s, s, token);
                if (early_b) tile.fetch_b(s, s, token);
            }
            vendor::wait_for_prior_kernel();
            PG_ROLLED
            for (i32 s = 0; s < count; s++) {
                const arch::copy_token token{&barriers.full[s], rank};
                if (!early_a) tile.fetch_a(s, s, token);
                if (!early_b) tile.fetch_b(s, s, token);
                at.advance();
            }
            return count;
        }
    };

    struct consumer {
        static constexpr bool loads = false, computes = true, whole_block = false;
        i32 thread;  // among the consumers
        sync& barriers;
        ring at;

        // Every consumer tells every block of the cluster: each multicasts into all.
        PG_DEVICE void release(i32 stage) {
            if constexpr (Cluster > 1) {
                if (thread % 128 < Cluster) barriers.empty[stage].arrive_at(thread % 128);
            } else {
                if (thread % 128 == 0) barriers.empty[stage].arrive();
            }
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
            // The sums are final only now: no read of them may be moved up.
            tile.accumulator.each([](f32& x) { asm volatile("" : "+f"(x)::"memory"); });
            if (last >= 0) release(last);
        }
    };

    template <class Body>
    PG_DEVICE static void run(sync& barriers, Body body) {
        // The loading thread makes the barriers, and loads at once unless blocks multicast into each other: nothing of
        // its start waits for other warps.
        const bool loading = vendor::thread() >= compute_threads;
        if (vendor::thread() == compute_threads) {
            PG_UNROLL
            for (i32 s = 0; s < Stages; s++) {
                barriers.full[s].init(1);
                barriers.empty[s].init(Consumers * Cluster);
            }
            barriers.partials.init(1);
            arch::fence_barrier_init();
        }
        vendor::let_next_kernel_start();
        if constexpr (Cluster > 1) {
            arch::arrive_at_cluster();
            arch::meet_cluster();
        } else if (loading) {
            arch::arrive_at_start(threads);
            if constexpr (Split > 1) arch::arrive_at_cluster();
        } else {
            arch::wait_for_start(threads);
            if constexpr (Split > 1) arch::arrive_at_cluster();  // and meet before sums are sent (split_store)
        }
        // NOTE: each warpgroup's role is one branch of this if; otherwise ptxas ignores the register counts.
        if (loading) {
            if constexpr (moves_registers) arch::give_registers<loader_registers>();
            if (vendor::thread() == compute_threads) {
                loader role{0, barriers, {}};
                body(role);
                if constexpr (Cluster > 1) role.drain();
            }
        } else {
            if constexpr (moves_registers) arch::take_registers<consumer_registers>();
            vendor::wait_for_prior_kernel();  // before any write, and before exit where there is no work
            consumer role{vendor::thread(), barriers, {}};
            body(role);
        }
    }
};

}  // namespace pg
