// GEMM: D = act(alpha * A * B^T + beta * C + bias) for A (m, k), B (n, k), any batch, any strides.
// One body for every arch. Config names the parts (written by portagemm/plan.py); the schedule decides who runs the
// four steps of a stage (fetch, commit, read, mma), when, and over how many stages.
#pragma once
#include <portagemm/copy.hpp>
#include <portagemm/epilogue.hpp>
#include <portagemm/scheduler.hpp>
#include <portagemm/store.hpp>

namespace pg {

// The by-value argument: what every kernel needs, and what the config's copies need (descriptors), 64-byte aligned.
template <class Config>
struct gemm_args {
    gemm_params params;
    typename Config::copy_args copies;
};

// What a config without descriptors has for copy_args.
struct no_copy_args {};

// A schedule that says so lends its stages to the store: nobody is in them between two of its main loops.
template <class Config, bool Lent>
struct shared_memory {
    using schedule = typename Config::schedule;
    shared_tile<typename Config::stage_a, schedule::readers> a[schedule::stages];
    shared_tile<typename Config::stage_b, schedule::readers> b[schedule::stages];
    typename Config::store::shared store;
    typename schedule::sync sync;
};
template <class Config>
struct shared_memory<Config, true> {
    using schedule = typename Config::schedule;
    union {
        struct {
            shared_tile<typename Config::stage_a, schedule::readers> a[schedule::stages];
            shared_tile<typename Config::stage_b, schedule::readers> b[schedule::stages];
        };
        typename Config::store::shared store;
    };
    typename schedule::sync sync;
};

template <class Config>
using gemm_shared = shared_memory<Config, requires { Config::schedule::lends_stages; }>;

// The steps of one tile, as one role sees them.
template <class Config, class Role>
struct tile_steps {
    using tile = typename Config::tile;
    using atom = typename Config::atom;
    using copy_a = typename Config::copy_a;
    using copy_b = typename Config::copy_b;
    static constexpr i32 block_k = tile::k;
    static constexpr i32 k_steps = tile::k_steps;
    static constexpr bool asynchronous = copy_a::asynchronous && copy_b::asynchronous;
    // Registers of a lane that are full during products: sums, and what copies hold between fetch and commit.
    static constexpr i32 sums = tile::atoms_m * tile::atoms_n * atom::c_size;
    template <class Copy>
    PG_HD static constexpr i32 carried_by() {
        if constexpr (Copy::asynchronous) {
            return 0;
        } else {  // an element narrower than a register fills one, unless it came with others
            return i32(sizeof(typename Copy::registers)) / min(4, Copy::vector * i32(sizeof(typename Copy::element)));
        }
    }
    static constexpr i32 stage_bytes = Config::stage_a::size + Config::stage_b::size;
    // Whether a lane's place in a stage is moved from atom to atom without carries (swizzled_stage::moved), and the atom
    // can make use of it.
    static constexpr bool places_are_fixed = is_power_of_two(tile::wave_m) && is_power_of_two(tile::wave_n) &&
                                             requires { atom::template place_a<typename Config::stage_a>(0, 0); };

    struct nothing {};
    template <bool Has, class T>
    struct held {
        using type = nothing;
    };
    template <class T>
    struct held<true, T> {
        using type = T;
    };

    const gemm_args<Config>& args;
    gemm_shared<Config>& shared;
    const i32 thread, wave, lane;
    tile_source source_a, source_b;
    i32 k_begin;
    // A role holds only what it uses: a loader no accumulators, a compute role no copy registers.
    typename held<Role::loads, typename copy_a::registers>::type registers_a;
    typename held<Role::loads, typename copy_b::registers>::type registers_b;
    typename held<Role::computes, typename Config::accumulator>::type accumulator;
    struct fragments {
        typename atom::a_fragment a[tile::atoms_m];
        typename atom::b_fragment b[tile::atoms_n];
    };

    PG_DEVICE tile_steps(const gemm_args<Config>& arguments, gemm_shared<Config>& memory, i32 thread_of_role)
        : args(arguments),
          shared(memory),
          thread(thread_of_role),
          wave(thread_of_role / atom::lanes),
          lane(thread_of_role % atom::lanes) {}

    PG_DEVICE void begin(const work& w) {
        const gemm_params& p = args.params;
        k_begin = w.k_begin;
        if constexpr (Role::loads) {
            source_a = source<copy_a>(p.a, w.m, p.m, w);
            source_b = source<copy_b>(p.b, w.n, p.n, w);
            if constexpr (requires { copy_a::begin(registers_a, source_a, thread); }) {
                copy_a::begin(registers_a, source_a, thread);
            }
            if constexpr (requires { copy_b::begin(registers_b, source_b, thread); }) {
                copy_b::begin(registers_b, source_b, thread);
            }
        }
        if constexpr (Role::computes) accumulator.clear();
    }

    template <class Copy>
    PG_DEVICE tile_source source(const operand& o, i32 mn, i32 mn_end, const work& w) {
        if constexpr (requires { Copy::map(args.copies); }) {
            return {&Copy::map(args.copies), 0, 0, mn, mn_end, w.k_end, Copy::batch(args.copies, w.batch)};
        } else {
            using element = typename Copy::element;
            const element* matrix = static_cast<const element*>(o.ptr) + batch_offset(o, args.params, w.batch);
            return {matrix, o.row, o.col, mn, mn_end, w.k_end, w.batch};
        }
    }

    PG_DEVICE auto& stage_a(i32 s) { return shared.a[s]; }
    PG_DEVICE auto& stage_b(i32 s) { return shared.b[s]; }

    // Start copying step kt of K into a stage.
    template <class Token>
    PG_DEVICE void fetch(i32 s, i32 kt, Token token) {
        fetch_a(s, kt, token);
        fetch_b(s, kt, token);
    }
    template <class Token>
    PG_DEVICE void fetch_a(i32 s, i32 kt, Token token) {
        copy_a::fetch(registers_a, source_a, shared.a[s].data, k_begin + kt * block_k, thread, token);
    }
    template <class Token>
    PG_DEVICE void fetch_b(i32 s, i32 kt, Token token) {
        copy_b::fetch(registers_b, source_b, shared.b[s].data, k_begin + kt * block_k, thread, token);
    }

    // Finish copies that go through registers; nothing for asynchronous ones.
    PG_DEVICE void commit(i32 s) {
        copy_a::commit(registers_a, shared.a[s].data, thread);
        copy_b::commit(registers_b, shared.b[s].data, thread);
    }

    // Both at once: for copies that would hold too many registers in between.
    PG_DEVICE void copy(i32 s, i32 kt) {
        copy_one<copy_a>(registers_a, source_a, shared.a[s].data, k_begin + kt * block_k);
        copy_one<copy_b>(registers_b, source_b, shared.b[s].data, k_begin + kt * block_k);
    }
    template <class Copy, class Registers>
    PG_DEVICE void copy_one(Registers& registers, const tile_source& from, u8* stage, i32 k) {
        if constexpr (requires { Copy::copy(from, stage, k, thread); }) {
            Copy::copy(from, stage, k, thread);
        } else {
            Copy::fetch(registers, from, stage, k, thread, no_token{});
            Copy::commit(registers, stage, thread);
        }
    }

    // Stage -> fragments of one atom's depth of K.
    PG_DEVICE void read(fragments& f, i32 s, i32 kk) {
        using stage_a = typename Config::stage_a;
        using stage_b = typename Config::stage_b;
        const coord origin = tile::wave_origin(wave);
        if constexpr (places_are_fixed) {
            // Loop-invariant; the loops below add constants.
            const i32 place_a = atom::template place_a<stage_a>(origin.row, lane);
            const i32 place_b = atom::template place_b<stage_b>(origin.col, lane);
            PG_UNROLL
            for (i32 i = 0; i < tile::atoms_m; i++) {
                atom::template read_a_at<stage_a>(f.a[i], shared.a[s].data, place_a, i * atom::m, kk * atom::k);
            }
            PG_UNROLL
            for (i32 j = 0; j < tile::atoms_n; j++) {
                atom::template read_b_at<stage_b>(f.b[j], shared.b[s].data, place_b, j * atom::n, kk * atom::k);
            }
        } else {
            PG_UNROLL
            for (i32 i = 0; i < tile::atoms_m; i++) {
                atom::template read_a<stage_a>(f.a[i], shared.a[s].data, origin.row + i * atom::m, kk * atom::k, lane);
            }
            PG_UNROLL
            for (i32 j = 0; j < tile::atoms_n; j++) {
                atom::template read_b<stage_b>(f.b[j], shared.b[s].data, origin.col + j * atom::n, kk * atom::k, lane);
            }
        }
    }

    PG_DEVICE void mma(const fragments& f, i32 kk) {
        PG_UNROLL
        for (i32 i = 0; i < tile::atoms_m; i++) {
            PG_UNROLL
            for (i32 j = 0; j < tile::atoms_n; j++) atom::mma(accumulator.at(kk, i, j), f.a[i], f.b[j]);
        }
    }

    // A whole stage.
    PG_DEVICE void compute(i32 s) {
        PG_UNROLL
        for (i32 kk = 0; kk < tile::k_steps; kk++) {
            fragments f;
            read(f, s, kk);
            mma(f, kk);
        }
    }
};

// A store that says how many bytes it borrows of the stages gets them: they are free by then.
template <class Config, class Epilogue, class Shared, class Role>
PG_DEVICE void store_tile(const typename Config::accumulator& acc, const Epilogue& epilogue,
                          const gemm_args<Config>& args, Shared& shared, const work& w, Role& role) {
    if constexpr (requires { Config::store::borrowed; }) {
        static_assert(sizeof(shared.a) + sizeof(shared.b) >= Config::store::borrowed);
        Config::store::store(acc, epilogue, args, shared.store, reinterpret_cast<u8*>(&shared), w, role);
    } else {
        Config::store::store(acc, epilogue, args, shared.store, w, role);
    }
}

template <class Config>
PG_DEVICE void gemm(const gemm_args<Config>& args) {
    using schedule = typename Config::schedule;
    using epilogue = typename Config::epilogue;

    // Set-up
    auto& shared = *reinterpret_cast<gemm_shared<Config>*>(vendor::shared_memory());
    if constexpr (requires { Config::copy_a::prefetch(args.copies); }) {
        if (vendor::thread() == 0) {
            Config::copy_a::prefetch(args.copies);
            Config::copy_b::prefetch(args.copies);
        }
    }

    schedule::run(shared.sync, [&](auto& role) {
        using role_type = typename remove_reference<decltype(role)>::type;
        tile_scheduler<typename Config::tile, schedule::cluster, schedule::split> tiles(args.params);
        tile_steps<Config, role_type> tile(args, shared, role.thread);
        work w;
        while (tiles.pop(w)) {
            tile.begin(w);

            // Main loop
            role.mainloop(tile, ceil_div(w.k_end - w.k_begin, Config::tile::k));

            // Epilogue
            if constexpr (role_type::computes) {
                tile.accumulator.fold();
                store_tile<Config>(tile.accumulator, epilogue(args.params, w), args, shared, w, role);
            }
            if constexpr (requires { Config::atom::one_tile; }) break;
        }
        if constexpr (role_type::computes) Config::store::finish(role);
    });
}

}  // namespace pg
