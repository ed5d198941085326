// What the AMD main loops share: two stages of LDS, all waves load and compute. While one stage is computed, the next
// tile goes from registers into the other stage, and the one after it is on its way into registers.
//
// Roles do not pay here: a wave's registers cannot be given to another one, so a loader's would lie idle.
#pragma once
#include <portagemm/schedule/single_buffer.hpp>

namespace pg {

template <int Threads>
struct two_stages {
    static constexpr i32 stages = 2, cluster = 1, split = 1, threads = Threads;
    static constexpr scope readers = scope::block;
    // Outside its main loop nobody uses the stages, and it begins with a barrier: the store may have them.
    static constexpr bool lends_stages = true;
    static constexpr i32 waves = Threads / vendor::wave_size;

    // Which waves put a value into a stage that the matrix unit would take for zero: a byte each, written with the
    // stage and read with it. Only atoms that watch for such values use it.
    struct sync {
        alignas(8) u8 suspect[2][8];
    };

    struct role : all_waves {
        sync& flags;

        // Whether the atom wants its operands looked at on their way.
        template <class Tile>
        static constexpr bool watched = requires { Tile::atom::watches; };

        template <class Tile>
        PG_DEVICE void commit(Tile& tile, i32 s) {
            watch<Tile>(tile, s, tile.registers_a.direct || tile.registers_b.direct);
            tile.commit(s);
        }
        template <class Tile>
        PG_DEVICE void commit_whole(Tile& tile, i32 s) {
            watch<Tile>(tile, s, false);
            Tile::copy_a::commit_whole(tile.registers_a, tile.shared.a[s].data, tile.thread);
            Tile::copy_b::commit_whole(tile.registers_b, tile.shared.b[s].data, tile.thread);
        }
        // The steps from kt on, where whole_steps says that they are whole.
        template <class Tile>
        struct cursors {
            typename Tile::copy_a::cursor a;
            typename Tile::copy_b::cursor b;
        };
        template <class Tile>
        PG_DEVICE static cursors<Tile> steps_from(Tile& tile, i32 kt) {
            const i32 k = tile.k_begin + kt * Tile::block_k;
            return {Tile::copy_a::whole_steps_from(tile.registers_a, tile.source_a, k),
                    Tile::copy_b::whole_steps_from(tile.registers_b, tile.source_b, k)};
        }
        template <class Tile>
        PG_DEVICE static void fetch_whole(Tile& tile, cursors<Tile>& next) {
            Tile::copy_a::fetch_whole(tile.registers_a, next.a);
            Tile::copy_b::fetch_whole(tile.registers_b, next.b);
        }

        // What was written element by element was not looked at: suspect.
        template <class Tile>
        PG_DEVICE void watch(Tile& tile, i32 s, bool unseen) {
            if constexpr (watched<Tile>) {
                using atom = typename Tile::atom;
                static_assert(waves <= 8);
                u32 least = atom::nothing_seen;
                auto look = [&](u32 word) { least = atom::seen(least, word); };
                Tile::copy_a::each_word(tile.registers_a, look);
                Tile::copy_b::each_word(tile.registers_b, look);
                const bool suspect = unseen || atom::any_suspect(least);
                flags.suspect[s][tile.thread / vendor::wave_size] = suspect ? 1 : 0;
            }
        }

        // All lanes agree.
        template <class Tile>
        PG_DEVICE bool suspects(i32 s) {
            if constexpr (watched<Tile>) {
                if constexpr (waves == 8) {
                    struct alignas(8) pair {
                        i32 low, high;
                    };
                    const pair all = *reinterpret_cast<const pair*>(flags.suspect[s]);
                    return (vendor::uniform(all.low) | vendor::uniform(all.high)) != 0;
                } else {
                    static_assert(waves == 4);
                    return vendor::uniform(*reinterpret_cast<const i32*>(flags.suspect[s])) != 0;
                }
            }
            return false;
        }

        // Fragments times fragments by the plain instruction, or with each looked at where the stage is suspect.
        template <class Tile>
        PG_DEVICE static void multiply(Tile& tile, const typename Tile::fragments& f, i32 kk) {
            using atom = typename Tile::atom;
            PG_UNROLL
            for (i32 i = 0; i < Tile::tile::atoms_m; i++) {
                PG_UNROLL
                for (i32 j = 0; j < Tile::tile::atoms_n; j++) {
                    if constexpr (watched<Tile>) {
                        atom::mma(tile.accumulator.at(kk, i, j), f.a[i], f.b[j], false);
                    } else {
                        atom::mma(tile.accumulator.at(kk, i, j), f.a[i], f.b[j]);
                    }
                }
            }
        }
        template <class Tile>
        PG_DEVICE static void multiply_suspect(Tile& tile, const typename Tile::fragments& f, i32 kk) {
            using atom = typename Tile::atom;
            using block = typename Tile::tile;
            if constexpr (watched<Tile>) {
                bool a[block::atoms_m], b[block::atoms_n];
                PG_UNROLL
                for (i32 i = 0; i < block::atoms_m; i++) a[i] = atom::any_subnormal(f.a[i]);
                PG_UNROLL
                for (i32 j = 0; j < block::atoms_n; j++) b[j] = atom::any_subnormal(f.b[j]);
                PG_UNROLL
                for (i32 i = 0; i < block::atoms_m; i++) {
                    PG_UNROLL
                    for (i32 j = 0; j < block::atoms_n; j++) {
                        atom::mma(tile.accumulator.at(kk, i, j), f.a[i], f.b[j], a[i] || b[j]);
                    }
                }
            }
        }

        // Steps of K that every lane copies whole: those before it may be brought by fetch_whole and commit_whole.
        template <class Tile>
        PG_DEVICE static i32 whole_steps(const Tile& tile) {
            const bool whole =
                Tile::copy_a::takes_whole_steps(tile.registers_a) && Tile::copy_b::takes_whole_steps(tile.registers_b);
            return whole ? vendor::uniform(tile.source_a.k_end - tile.k_begin) / Tile::block_k : 0;
        }

        // Step 0 into stage 0, step 1 into registers.
        template <class Tile>
        PG_DEVICE void begin(Tile& tile, i32 k_tiles) {
            barrier<scope::block>(*this);  // the store before has left the stages
            if (k_tiles > 0) {
                tile.fetch(0, 0, no_token{});
                commit(tile, 0);
            }
            if (k_tiles > 1) tile.fetch(1, 1, no_token{});
            publish<scope::block>(tile.stage_a(0), *this);
        }

        // Any step, in either stage; meanwhile bring the next two, with all that tails and subnormals need.
        template <class Tile>
        PG_DEVICE void step(Tile& tile, i32 kt, i32 k_tiles) {
            const i32 s = kt % 2;
            const bool suspect = suspects<Tile>(s);
            PG_ROLLED
            for (i32 kk = 0; kk < Tile::k_steps; kk++) {
                typename Tile::fragments f;
                tile.read(f, s, kk);
                if (suspect) {
                    multiply_suspect(tile, f, kk);
                } else {
                    multiply(tile, f, kk);
                }
            }
            if (kt + 1 < k_tiles) commit(tile, 1 - s);
            // NOTE: a fetch may write the stage it is for, so this one waits for the readers of step kt.
            publish<scope::block>(tile.stage_a(1 - s), *this);
            if (kt + 2 < k_tiles) tile.fetch(s, kt + 2, no_token{});
        }
    };

    template <class Role, class Body>
    PG_DEVICE static void run_role(sync& flags, Body body) {
        Role all{{{vendor::thread()}, flags}};
        body(all);
    }
};

}  // namespace pg
