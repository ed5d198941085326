// The barriers of backends/cuda/include/portagemm/arch/mbarrier.hpp, emulated.
#pragma once
#include <portagemm/arch/sm80_instructions.hpp>

namespace pg::arch {

struct arrival_barrier {
    std::uint64_t state;

    void init(i32 arrivals) { state = std::uint64_t(arrivals) << 20 | std::uint64_t(arrivals); }
    void arrive() { emulator::count(state, -1); }
    void arrive_after_copies() {
        auto& lane = emulator::self();
        emulator::now->arrivals.push_back({std::move(lane.pending), &state});
        lane.pending.clear();
    }
    void await_copies() {
        emulator::count(state, 1);
        arrive_after_copies();
    }
    void wait(u32 phase) {
        auto& lane = emulator::self();
        lane.barrier = &state;
        lane.phase = phase;
        emulator::meet(emulator::meeting::phase);
    }
};

}  // namespace pg::arch
