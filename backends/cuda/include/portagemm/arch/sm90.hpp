// Hopper (sm_90a): wgmma on operands in shared memory, tensor copies (TMA) that complete on mbarriers, clusters.
// PTX ISA sections: mbarrier, cp.async.bulk.tensor, wgmma, stmatrix, setmaxnreg, barrier.cluster.
#pragma once
#include <portagemm/arch/mbarrier.hpp>
#include <portagemm/arch/wgmma.hpp>
#include <portagemm/concepts.hpp>
#include <portagemm/copy.hpp>
#include <portagemm/store.hpp>

namespace pg::arch {

// A part that the target has no instruction for says so itself; the assembler would name lines of PTX.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool is_sm90a = false;
#else
inline constexpr bool is_sm90a = true;
#endif

struct alignas(64) tensor_map {
    u64 opaque[16];
};

// ---- Barriers of pair scope -----------------------------------------------------------------------------------------

// A barrier that also counts bytes, and that other blocks of the cluster reach.
struct transaction_barrier : arrival_barrier {
    // One arrival, and `size` bytes that copies will announce.
    PG_DEVICE void arrive_expecting(i32 size) {
        random_delay();
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(vendor::shared_address(&state)),
                     "r"(size)
                     : "memory");
    }
    // For what other blocks of the cluster sent: their writes are seen after this wait.
    PG_DEVICE void wait_for_cluster(u32 phase) {
        random_delay();
        asm volatile(
            "{.reg .pred done;\n"
            "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
            "@!done bra again;}" ::"r"(vendor::shared_address(&state)),
            "r"(phase)
            : "memory");
    }
    // NOTE: the default scope (CTA) on purpose. It only frees a buffer whose reads have retired; with
    // .release.cluster ptxas puts a MEMBAR into every step of K, at a cost of 15 % (docs/performance.md).
    PG_DEVICE void arrive_at(i32 rank) {
        random_delay();
        asm volatile(
            "{.reg .b32 remote;\n"
            "mapa.shared::cluster.u32 remote, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(vendor::shared_address(&state)),
            "r"(rank)
            : "memory");
    }
};

PG_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// The two halves of a cluster's barrier. Relaxed: what barriers' makers wrote is released by fence_barrier_init, and
// nothing else passes between blocks this way. With .release ptxas puts a MEMBAR.ALL.GPU before every arrival.
PG_DEVICE void arrive_at_cluster() {
    random_delay();
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
PG_DEVICE void meet_cluster() {
    random_delay();
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// A barrier of the block that some only arrive at: the others see what they wrote before (PTX ISA, barrier.cta.arrive).
// NOTE: not barrier 0, which __syncthreads waits at in a way of its own; nor one of the groups' (vendor::pair_barrier).
constexpr i32 start_barrier = 15, consumers_barrier = 14;
PG_DEVICE void arrive_at_start(i32 threads) {
    random_delay();
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"n"(start_barrier), "r"(threads) : "memory");
}
PG_DEVICE void wait_for_start(i32 threads) {
    random_delay();
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"n"(start_barrier), "r"(threads) : "memory");
}
// A barrier of the threads that compute alone.
PG_DEVICE void meet_consumers(i32 threads) {
    random_delay();
    asm volatile("barrier.cta.sync %0, %1;" ::"n"(consumers_barrier), "r"(threads) : "memory");
}

// Brings a descriptor close before the first copy asks for it.
PG_DEVICE void prefetch(const tensor_map& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

template <int Registers>
PG_DEVICE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
PG_DEVICE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// ---- Matrix unit ----------------------------------------------------------------------------------------------------

// D (64 x N, fp32 registers of a warpgroup) += A (64 x 16) * B (N x 16)^T, both read from swizzled stages by descriptor.
template <class T, int N>
struct wgmma {
    static_assert(is_sm90a || unsupported<T>, "wgmma.mma_async exists on sm_90a alone");
    static_assert(same_type<T, fp16> || same_type<T, bf16>, "wgmma.m64nNk16 takes fp16 or bf16");
    using element = T;
    static constexpr i32 m = 64, n = N, k = 16, lanes = 128;
    static constexpr i32 c_size = N / 2, c_run = 2;
    struct a_fragment {
        u64 descriptor;
        static constexpr i32 transposed = 0;
    };
    using b_fragment = a_fragment;

    // PTX ISA, "Register Fragments ... D" of wgmma.m64nNk16: a warp holds 16 rows.
    PG_HD static constexpr coord c(i32 lane, i32 i) {
        return {lane / 32 * 16 + lane % 32 / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + lane % 4 * 2 + i % 2};
    }

    // Matrix descriptor of a 128-byte-swizzled stage. Bits 0-13 address / 16; 16-29 leading byte offset / 16: distance of
    // 64-element panels along MN (MN-major only); 32-45 stride byte offset / 16: distance of groups of 8 rows; 62-63: 1.
    template <class Stage>
    PG_DEVICE static u64 describe(const u8* stage, i32 mn, i32 kk) {
        static_assert(Stage::panel_bytes == 128, "wgmma stages are 128 bytes wide");
        const u32 at = vendor::shared_address(stage) + Stage::offset(mn, kk);
        constexpr u64 leading = Stage::order == major::mn ? Stage::panel_stride / 16 : 1;
        return u64((at & 0x3ffff) >> 4) | leading << 16 | u64(1024 / 16) << 32 | u64(1) << 62;
    }
    template <class Stage>
    PG_DEVICE static void read_a(a_fragment& f, const u8* stage, i32 mn, i32 kk, i32) {
        f.descriptor = describe<Stage>(stage, mn, kk);
    }
    template <class Stage>
    PG_DEVICE static void read_b(b_fragment& f, const u8* stage, i32 mn, i32 kk, i32) {
        f.descriptor = describe<Stage>(stage, mn, kk);
    }
};

// The same with the operands' orders, which are part of the instruction.
template <class T, int N, major MajorA, major MajorB>
struct wgmma_atom : wgmma<T, N> {
    PG_DEVICE static void mma(f32 (&acc)[N / 2], const typename wgmma<T, N>::a_fragment& a,
                              const typename wgmma<T, N>::b_fragment& b) {
        wgmma_instruction<N>::template issue<T, MajorA == major::mn, MajorB == major::mn>(acc, a.descriptor,
                                                                                          b.descriptor);
    }
};

// Registers written before are seen by the matrix unit; the compiler may not move accesses across.
template <class Accumulator>
PG_DEVICE void begin_matrix_group(Accumulator& acc) {
    acc.each([](f32& x) { asm volatile("" : "+f"(x)::"memory"); });
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
PG_DEVICE void close_matrix_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
PG_DEVICE void wait_matrix_groups() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// ---- Tensor copies --------------------------------------------------------------------------------------------------

// Descriptors of the operands, whether each has a batch dimension (a broadcast operand has not), and whether the caller
// says that no kernel in flight writes it.
struct tensor_copy_args {
    tensor_map a, b, d;
    i32 a_batched, b_batched;
    i32 a_constant, b_constant;
};

// What a copy needs from its schedule: the barrier on which its bytes count, and where its cluster stands.
struct copy_token {
    transaction_barrier* full;
    i32 rank;
};

enum class operand_name { a, b };

// One thread copies a whole stage, in boxes of up to 64 elements (128 bytes) of the contiguous dimension. With Slices > 1
// each block of the cluster loads its slice and multicasts it to all. Elements outside the tensor arrive as zeros and
// count as bytes all the same.
template <class Element, class Stage, operand_name Operand, int Slices>
struct tensor_copy {
    using element = Element;
    static_assert(same_type<Element, typename Stage::element>, "a tensor copy cannot convert");
    static constexpr bool asynchronous = true;
    static constexpr bool k_major = Stage::order == major::k;
    // A slice is a range of rows of the stage (K-major) or of its panels (MN-major).
    static constexpr i32 boxes = Stage::panels / (k_major ? 1 : Slices);
    static constexpr i32 slice_rows = k_major ? Stage::mn / Slices : Stage::mn / Slices;
    static_assert(k_major ? slice_rows % 8 == 0 && slice_rows * Slices == Stage::mn : boxes * Slices == Stage::panels,
                  "a multicast slice is whole swizzle periods");
    struct registers {};

    PG_DEVICE static const tensor_map& map(const tensor_copy_args& args) {
        return Operand == operand_name::a ? args.a : args.b;
    }
    PG_DEVICE static void prefetch(const tensor_copy_args& args) { arch::prefetch(map(args)); }
    PG_DEVICE static i32 batch(const tensor_copy_args& args, i64 index) {
        return i32(index) * (Operand == operand_name::a ? args.a_batched : args.b_batched);
    }

    PG_DEVICE static void fetch(registers&, const tile_source& s, u8* stage, i32 k, i32, copy_token token) {
        const i32 slice = Slices > 1 ? token.rank : 0;
        PG_UNROLL
        for (i32 box = 0; box < boxes; box++) {
            if constexpr (k_major) {
                const i32 row = slice * slice_rows;
                load(s, token, stage + box * Stage::panel_stride + row * Stage::panel_bytes,
                     k + box * Stage::panel_cols, s.mn + row);
            } else {
                const i32 panel = slice * boxes + box;
                load(s, token, stage + panel * Stage::panel_stride, s.mn + panel * Stage::panel_cols, k);
            }
        }
    }
    PG_DEVICE static void commit(registers&, u8*, i32) {}

  private:
    PG_DEVICE static void load(const tile_source& s, copy_token token, u8* to, i32 x, i32 y) {
        const u32 at = vendor::shared_address(to), full = vendor::shared_address(token.full);
        if constexpr (Slices > 1) {
            asm volatile(
                "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(at),
                "l"(s.ptr), "r"(full), "r"(x), "r"(y), "r"(i32(s.batch)), "h"(u16((1 << Slices) - 1))
                : "memory");
        } else {
            asm volatile(
                "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(at),
                "l"(s.ptr), "r"(full), "r"(x), "r"(y), "r"(i32(s.batch))
                : "memory");
        }
    }
};

// Accumulators -> 16-bit D by stmatrix and tensor store. Every warp sends its 16 rows on their way by itself, Columns
// at a time through two buffers, so that no warp waits for another. The store clips at D's edges, but along n in steps of
// 16 bytes: for D contiguous along n, 16-byte aligned, with rows of whole 16 bytes.
template <class ElementD, class Tile, int Columns>
struct tensor_store {
    using atom = typename Tile::atom;
    static constexpr i32 rows = 16;  // of a warp: atom::c
    static constexpr i32 row_bytes = Columns * i32(sizeof(ElementD));
    static constexpr i32 strips = Tile::wave_n / Columns;
    static_assert(sizeof(ElementD) == 2 && atom::lanes == 128 && strips * Columns == Tile::wave_n);
    // Rows of 128, 64 or 32 bytes are swizzled. Others lie as they are: an odd number of 16-byte chunks apart, 8 rows
    // are in all banks.
    static constexpr bool swizzled = row_bytes == 128 || row_bytes == 64 || row_bytes == 32;
    static_assert(swizzled || row_bytes % 32 == 16, "8 rows of a matrix would share banks");
    // Buffers start at the swizzle's period: 8 rows of 128, 64 or 32 bytes; without one at 128 bytes.
    static_assert(rows * row_bytes % (swizzled ? 8 * row_bytes : 128) == 0);
    struct shared {
        alignas(1024) u8 strip[Tile::waves_m * Tile::waves_n * 4][2][rows * row_bytes];
    };

    // The copy engine's swizzle of the row's width: chunk index XOR 128-byte line, over 8, 4 or 2 chunks.
    PG_HD static constexpr i32 swizzle(i32 offset) {
        return swizzled ? offset ^ ((offset >> 3) & (row_bytes - 16)) : offset;
    }

    template <class Epilogue, class Args, class Role>
    PG_DEVICE static void store(const plain_accumulator<Tile>& acc, const Epilogue& e, const Args& args, shared& memory,
                                const work& w, const Role& role) {
        const gemm_params& p = args.params;
        const i32 wave = role.thread / 128, lane = role.thread % 128, warp = role.thread / 32;
        const coord origin = Tile::wave_origin(wave);
        PG_UNROLL
        for (i32 i = 0; i < Tile::atoms_m; i++) {
            const i32 m0 = w.m + origin.row + i * atom::m;
            PG_UNROLL
            for (i32 s = 0; s < strips; s++) {
                const i32 n0 = w.n + origin.col + s * Columns;
                u8* strip = memory.strip[warp][(i * strips + s) % 2];
                // A buffer is free once the store that used it has read it; only the thread that issued it knows. Within
                // a tile that is the store before the last. NOTE: a tile begins with the first buffer, whichever the tile
                // before ended with, so there both must be free.
                if (lane % 32 == 0) {
                    if (i == 0 && s == 0) {
                        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
                    } else {
                        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
                    }
                }
                barrier<scope::wave>(role);
                PG_UNROLL
                for (i32 q = 0; q < Columns; q += 16) {
                    constexpr i32 most = 4;
                    u32 r[most] = {};
                    PG_UNROLL
                    for (i32 x = 0; x < (Columns - q < 16 ? 2 : most); x++) {
                        const i32 index = (s * Columns + q) / 2 + x * 2;
                        const coord at = atom::c(lane, index);
                        const i32 m = m0 + at.row, n = w.n + origin.col + at.col;
                        r[x] = pack<ElementD>(value(e, p, acc.value[i][0][index], m, n),
                                              value(e, p, acc.value[i][0][index + 1], m, n + 1));
                    }
                    // stmatrix: matrix j is (rows 8 * (j % 2), columns 8 * (j / 2)) of 16 x 16; of the last 8 columns two.
                    const i32 j = lane % 32 / 8, row = j % 2 * 8 + lane % 8;
                    if (Columns - q >= 16) {
                        const u32 to = vendor::shared_address(strip) + swizzle(row * row_bytes + q * 2 + j / 2 * 16);
                        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                                     "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                                     : "memory");
                    } else {
                        const u32 to = vendor::shared_address(strip) + swizzle(row * row_bytes + q * 2);
                        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(r[0]),
                                     "r"(r[1])
                                     : "memory");
                    }
                }
                // Ordinary writes become visible to the copy engine, then all lanes have written.
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                barrier<scope::wave>(role);
                if (lane % 32 == 0) {
                    asm volatile(
                        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\n"
                        "cp.async.bulk.commit_group;" ::"l"(&args.copies.d),
                        "r"(vendor::shared_address(strip)), "r"(n0), "r"(m0 + warp % 4 * rows), "r"(i32(w.batch))
                        : "memory");
                }
            }
        }
    }

    // Shared memory must outlive the stores that read it.
    template <class Role>
    PG_DEVICE static void finish(const Role& role) {
        if (role.thread % 32 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }

  private:
    // C and the bias may only be read inside D.
    template <class Epilogue>
    PG_DEVICE static f32 value(const Epilogue& e, const gemm_params& p, f32 acc, i32 m, i32 n) {
        if constexpr (Epilogue::reads) {
            return m < p.m && n < p.n ? e.apply(acc, m, n) : 0.0f;
        } else {
            return e.apply(acc, m, n);
        }
    }
};

// Sums a tile whose K is split over the blocks of a cluster, then stores it. Each block owns an equal range of the
// tile's rows; every block sends it its accumulators for them, in one bulk copy into a slot of its own, and the owner
// adds the slots in the blocks' order: the result does not depend on who is first. One tile a cluster.
// NOTE: bulk copies, not st.async: 8 bytes at a time took 1.5 to 3 us a tile (docs/performance.md).
template <class ElementD, int Vector, class Tile, int Split, along Along>
struct split_store {
    using atom = typename Tile::atom;
    static constexpr i32 rows = Tile::m / Split;
    // Pairs of 4 lanes side by side, in 4 rows 8 words apart: all banks.
    static constexpr i32 pitch = Tile::n % 16 == 8 ? Tile::n : Tile::n + 8;
    static constexpr i32 part = rows * pitch, part_bytes = part * i32(sizeof(f32));
    static_assert(rows * Split == Tile::m && atom::c_run == 2 && Tile::waves_n == 1 && part_bytes % 16 == 0);
    static_assert(Along == along::m ? rows % Vector == 0 : Tile::n % Vector == 0);
    // What other blocks sent. This block's own sums lie in the stages, which nobody needs any more.
    struct shared {
        alignas(16) f32 slot[Split][part];
    };
    static constexpr i32 borrowed = Split * part_bytes;  // of the stages

    // A block may not leave while others still copy from its shared memory.
    template <class Role>
    PG_DEVICE static void finish(const Role&) {
        meet_cluster();
    }

    template <class Epilogue, class Args, class Role>
    PG_DEVICE static void store(const plain_accumulator<Tile>& acc, const Epilogue& e, const Args& args, shared& memory,
                                u8* stages, const work& w, const Role& role) {
        const gemm_params& p = args.params;
        const i32 lane = role.thread % atom::lanes, rank = vendor::cluster_rank();
        const coord origin = Tile::wave_origin(role.thread / atom::lanes);
        auto& arrived = role.barriers.partials;
        f32* own = reinterpret_cast<f32*>(stages);
        meet_cluster();                 // the others' barriers exist
        meet_consumers(Tile::threads);  // all have read the stages
        if (role.thread == 0) arrived.arrive_expecting((Split - 1) * part_bytes);
        PG_UNROLL
        for (i32 i = 0; i < Tile::atoms_m; i++) {
            PG_UNROLL
            for (i32 r = 0; r < atom::c_size; r += 2) {
                const coord at = atom::c(lane, r);
                f32* to = own + (origin.row + i * atom::m + at.row) * pitch + at.col;
                *reinterpret_cast<bytes<8>*>(to) = *reinterpret_cast<const bytes<8>*>(&acc.value[i][0][r]);
            }
        }
        // Ordinary writes become visible to the copy engine, then all have written.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet_consumers(Tile::threads);
        if (role.thread < Split && role.thread != rank)
            send(own + role.thread * part, memory.slot[rank], arrived, role.thread);
        arrived.wait_for_cluster(0);
        arrive_at_cluster();
        ElementD* d = output_of<ElementD>(p, w);
        constexpr i32 vectors = rows * Tile::n / Vector;
        PG_ROLLED
        for (i32 v = role.thread; v < vectors; v += Tile::threads) {
            const i32 row = Along == along::m ? v % (rows / Vector) * Vector : v / (Tile::n / Vector);
            const i32 col = Along == along::m ? v / (rows / Vector) : v % (Tile::n / Vector) * Vector;
            const i32 m = w.m + rank * rows + row, n = w.n + col;
            if (m >= p.m || n >= p.n) continue;
            f32 sum[Vector];
            PG_UNROLL
            for (i32 x = 0; x < Vector; x++) sum[x] = 0.0f;
            PG_UNROLL
            for (i32 s = 0; s < Split; s++) {
                const f32* from = s == rank ? own + rank * part : memory.slot[s];
                PG_UNROLL
                for (i32 x = 0; x < Vector; x++) {
                    sum[x] += from[(row + (Along == along::m ? x : 0)) * pitch + col + (Along == along::m ? 0 : x)];
                }
            }
            store_vector<ElementD, Vector, Along>(d, sum, e, p, m, n);
        }
    }

  private:
    // One thread: a part to another block's slot, whose bytes count on that block's barrier.
    PG_DEVICE static void send(const f32* part_of, const f32* slot, const transaction_barrier& arrived, i32 to) {
        random_delay();
        asm volatile(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                at_rank(slot, to)),
            "r"(vendor::shared_address(part_of)), "r"(part_bytes), "r"(at_rank(&arrived, to))
            : "memory");
    }
    // Address of a place of this block's shared memory in that of another block of the cluster.
    PG_DEVICE static u32 at_rank(const void* place, i32 rank) {
        u32 remote;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(vendor::shared_address(place)), "r"(rank));
        return remote;
    }
};

}  // namespace pg::arch
