// For schedules whose roles meet at barriers: one each for "full" and "empty" a stage.
#pragma once
#include <portagemm/core.hpp>

namespace pg {

// Place in a ring of stages, and the phase of its barriers. It runs on from tile to tile, so that who loads is ahead across
// tiles too.
template <int Stages>
struct stage_ring {
    i32 stage = 0;
    u32 phase = 0;
    PG_DEVICE void advance() {
        if (++stage == Stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

}  // namespace pg
