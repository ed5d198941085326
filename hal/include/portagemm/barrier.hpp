// Who waits for whom. A schedule names the scope it needs; the backend maps it to its instruction.
#pragma once
#include <portagemm/core.hpp>

namespace pg {

// wave: lanes of one wave. pair: one loader and its consumers, or the waves of one consumer group.
// block: all waves of a block. cluster: all waves of a cluster (of the block where there are no clusters).
enum class scope { wave, pair, block, cluster };

// Roles of a schedule say which waves run them. A barrier over a scope whose waves do not all arrive would hang:
// inside a role branch (whole_block == false) only wave and pair are legal, whatever a backend widens them to.
template <scope S, class Role>
PG_DEVICE void barrier(const Role&) {
    static_assert(Role::whole_block || S < scope::block, "a block barrier inside a role branch deadlocks");
    static_assert(Role::whole_block || !vendor::widens_to_block(int(S)),
                  "this backend widens the scope to the block, which a role branch may not do");
    vendor::barrier(static_cast<int>(S));
}

// The lanes that run one atom together meet: a wave, or a group of waves (a warpgroup) with a barrier of its own.
template <int Lanes>
PG_DEVICE void group_barrier(i32 group) {
    if constexpr (Lanes <= vendor::wave_size) {
        vendor::barrier(int(scope::wave));
    } else {
        vendor::pair_barrier(group, Lanes);
    }
}

// Makes this thread's writes to a shared tile visible to every wave of the scope, then waits for them all.
// The tile's type carries the scope of its readers; publishing to fewer is a compile error.
template <scope S, class SharedTile, class Role>
PG_DEVICE void publish(const SharedTile&, const Role& role) {
    static_assert(S >= SharedTile::readers, "publish<Scope> is narrower than the tile's readers");
    barrier<S>(role);
}

}  // namespace pg
