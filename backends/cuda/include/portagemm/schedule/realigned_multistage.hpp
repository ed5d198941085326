// sm_80 and up, operands on no 16-byte boundary: all waves copy and compute, as in multistage. Words of such an operand stay
// in registers for a whole step of K; the next step's products hide that they are shifted and stored.
#pragma once
#include <portagemm/arch/sm80.hpp>
#include <portagemm/realign.hpp>
#include <portagemm/schedule/single_buffer.hpp>

namespace pg {

template <int Stages, int Threads, int MinBlocks>
struct realigned_multistage {
    static_assert(Stages >= 2);
    static constexpr i32 stages = Stages, cluster = 1, split = 1, threads = Threads, min_blocks = MinBlocks;
    static constexpr scope readers = scope::block;
    struct sync {};  // completion is counted in copy groups, which need no object

    // Where a lane reads in a stage.
    struct places {
        i32 a, b;
    };

    struct role : all_waves {
        PG_DEVICE static i32 next(i32 s) { return s + 1 == Stages ? 0 : s + 1; }

        // As in multistage: stage s is whole and visible, and all waves have read the one before.
        template <class Tile>
        PG_DEVICE void land(Tile& tile, i32 s) {
            arch::wait_copy_groups<Stages - 2>();
            publish<scope::block>(tile.stage_a(s), *this);
        }

        template <class Tile>
        PG_DEVICE void mainloop(Tile& tile, i32 k_tiles) {
            keep<typename Tile::copy_a>(tile.registers_a);
            keep<typename Tile::copy_b>(tile.registers_b);
            PG_ROLLED
            for (i32 s = 0; s < Stages - 1; s++) {
                if (s < k_tiles) tile.copy(s, s);
                arch::close_copy_group();
            }
            if (Stages - 1 < k_tiles) {
                load<typename Tile::copy_a>(tile.registers_a, tile.source_a, k_of(tile, Stages - 1), no_token{});
                load<typename Tile::copy_b>(tile.registers_b, tile.source_b, k_of(tile, Stages - 1), no_token{});
            }
            typename Tile::fragments f[ahead_by_one<Tile>() ? 2 : 1];
            const places at = places_of(tile);
            i32 current = 0, ahead = Stages - 1;
            land(tile, current);
            if constexpr (ahead_by_one<Tile>()) read(tile, f[0], at, current, 0);
            for (i32 kt = 0; kt < k_tiles; kt++) {
                // Two bodies: without a branch inside, copies and products are scheduled as one.
                if (kt + Stages < k_tiles && inside<typename Tile::copy_a>(tile, tile.registers_a, tile.source_a, kt) &&
                    inside<typename Tile::copy_b>(tile, tile.registers_b, tile.source_b, kt)) {
                    step(tile, f, at, current, ahead, kt, k_tiles, inside_step{});
                } else {
                    step(tile, f, at, current, ahead, kt, k_tiles, no_token{});
                }
                ahead = current;
                current = next(current);
            }
            // The next tile's first copies overwrite stages that slower waves may still read.
            arch::wait_copy_groups<0>();
            barrier<scope::block>(*this);
        }

        // Fragments of two steps where registers allow: they are read while the products of the step before run, across
        // stages too.
        template <class Tile>
        PG_HD static constexpr bool ahead_by_one() {
            constexpr i32 fragments = i32(sizeof(typename Tile::fragments)) / 4;
            return Tile::sums + held<typename Tile::copy_a>() + held<typename Tile::copy_b>() + 2 * fragments <= 200;
        }

        template <class Tile, int Fragments, class Token>
        PG_DEVICE void step(Tile& tile, typename Tile::fragments (&f)[Fragments], const places& at, i32 current,
                            i32 ahead, i32 kt, i32 k_tiles, Token token) {
            constexpr i32 last = Tile::k_steps - 1;
            constexpr bool always = same_type<Token, inside_step>;
            const bool store_more = always || kt + Stages - 1 < k_tiles, load_more = always || kt + Stages < k_tiles;
            PG_UNROLL
            for (i32 kk = 0; kk <= last; kk++) {
                if constexpr (Fragments == 1) {
                    read(tile, f[0], at, current, kk);
                } else {
                    if (kk < last) read(tile, f[(kk + 1) % 2], at, current, kk + 1);
                }
                if (kk == 0) {
                    if (store_more) {
                        store<typename Tile::copy_a>(tile.registers_a, tile.source_a, tile.stage_a(ahead).data,
                                                     k_of(tile, kt + Stages - 1), token);
                        store<typename Tile::copy_b>(tile.registers_b, tile.source_b, tile.stage_b(ahead).data,
                                                     k_of(tile, kt + Stages - 1), token);
                    }
                    if (load_more) {
                        load<typename Tile::copy_a>(tile.registers_a, tile.source_a, k_of(tile, kt + Stages), token);
                        load<typename Tile::copy_b>(tile.registers_b, tile.source_b, k_of(tile, kt + Stages), token);
                    }
                }
                if (Fragments == 1 || kk < last) tile.mma(f[kk % Fragments], kk);
            }
            arch::close_copy_group();
            land(tile, next(current));
            if constexpr (Fragments == 2) {
                read(tile, f[(last + 1) % 2], at, next(current), 0);  // after the last stage: what nobody uses
                tile.mma(f[last % 2], last);
                if constexpr (last % 2 == 0) f[0] = f[1];
            }
        }

      private:
        template <class Tile>
        PG_DEVICE static i32 k_of(Tile& tile, i32 kt) {
            return tile.k_begin + kt * Tile::block_k;
        }

        // Registers of words on their way.
        template <class Copy>
        PG_HD static constexpr i32 held() {
            if constexpr (Copy::asynchronous) {
                return 0;
            } else {
                return Copy::rounds * Copy::loaded;
            }
        }

        // As tile_steps::read, from places that are computed once a tile.
        template <class Tile>
        PG_DEVICE static places places_of(Tile& tile) {
            const coord origin = Tile::tile::wave_origin(tile.wave);
            places at{Tile::atom::template place_a<typename Tile::copy_a::stage>(origin.row, tile.lane),
                      Tile::atom::template place_b<typename Tile::copy_b::stage>(origin.col, tile.lane)};
            arch::hold(at.a);
            arch::hold(at.b);
            return at;
        }
        template <class Tile>
        PG_DEVICE static void read(Tile& tile, typename Tile::fragments& f, const places& at, i32 s, i32 kk) {
            using atom = typename Tile::atom;
            using stage_a = typename Tile::copy_a::stage;
            using stage_b = typename Tile::copy_b::stage;
            static_assert(Tile::places_are_fixed);
            PG_UNROLL
            for (i32 i = 0; i < Tile::tile::atoms_m; i++) {
                atom::template read_a_at<stage_a>(f.a[i], tile.stage_a(s).data, at.a, i * atom::m, kk * atom::k);
            }
            PG_UNROLL
            for (i32 j = 0; j < Tile::tile::atoms_n; j++) {
                atom::template read_b_at<stage_b>(f.b[j], tile.stage_b(s).data, at.b, j * atom::n, kk * atom::k);
            }
        }

        // What is the same for all steps stays in registers: it would be computed anew in each.
        template <class Copy, class Registers>
        PG_DEVICE static void keep(Registers& r) {
            if constexpr (!Copy::asynchronous) {
                arch::hold(r.shift);
                arch::hold(r.room);
                arch::hold(r.to);
            }
        }

        // Whether what iteration kt does for an operand needs no check.
        template <class Copy, class Tile, class Registers>
        PG_DEVICE static bool inside(Tile& tile, const Registers& r, const tile_source& from, i32 kt) {
            return Copy::inside(r, from, k_of(tile, kt + Stages - 1)) &&
                   (Copy::asynchronous || Copy::inside(r, from, k_of(tile, kt + Stages)));
        }

        // The held step's words go to a stage; an asynchronous copy of that step begins.
        template <class Copy, class Registers, class Token>
        PG_DEVICE void store(Registers& r, const tile_source& from, u8* stage, i32 k, Token token) {
            if constexpr (Copy::asynchronous) {
                Copy::fetch(r, from, stage, k, this->thread, token);
            } else {
                Copy::commit(r, stage, k, this->thread, token);
            }
        }

        // Words of step k are on their way to registers.
        template <class Copy, class Registers, class Token>
        PG_DEVICE void load(Registers& r, const tile_source& from, i32 k, Token token) {
            if constexpr (!Copy::asynchronous) Copy::fetch(r, from, nullptr, k, this->thread, token);
        }
    };

    template <class Body>
    PG_DEVICE static void run(sync&, Body body) {
        role all{{vendor::thread()}};
        body(all);
    }
};

}  // namespace pg
