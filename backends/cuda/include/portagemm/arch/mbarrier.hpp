// Barriers of pair scope: mbarrier objects in shared memory, sm_80 and up. PTX ISA sections: mbarrier,
// cp.async.mbarrier.arrive, nanosleep.
#pragma once
#include <portagemm/core.hpp>

namespace pg::arch {

// With -DPORTAGEMM_DELAY=<nanoseconds> every wait and every arrival pauses at random, up to about twice that long; now and
// then one wave is slow for a while. Faults of synchronisation then show as different results (portagemm/delays.py).
// The value is the same for all lanes of a wave that are here together. Without the define this is nothing.
PG_DEVICE void random_delay() {
#ifdef PORTAGEMM_DELAY
    u32 clock, time;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(clock));
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(time));
    const auto mixed = [](u32 x) {
        x = (x ^ (x >> 16)) * 0x85ebca6bu;
        x = (x ^ (x >> 13)) * 0xc2b2ae35u;
        return x ^ (x >> 16);
    };
    const u32 who = u32(vendor::block()) * 0x9e3779b9u + u32(vendor::thread() / vendor::wave_size) * 0x61c88647u;
    const bool slow = mixed(who ^ (time >> 14)) % 4 == 0;
    const u32 draw = mixed(who ^ clock);
    const u32 pause = draw % (slow ? 2 : 16) == 0 ? (draw >> 8) % (PORTAGEMM_DELAY) : 0;
    asm volatile("nanosleep.u32 %0;" ::"r"(pause));
#endif
}

// A count of arrivals; waiting is for the end of a phase, phases alternate.
struct arrival_barrier {
    u64 state;

    // By one thread; the block meets before anybody else uses it.
    PG_DEVICE void init(i32 arrivals) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(vendor::shared_address(&state)), "r"(arrivals)
                     : "memory");
    }
    // This thread's earlier reads and writes come before those that follow the others' wait.
    PG_DEVICE void arrive() {
        random_delay();
        asm volatile(
            "{.reg .b64 before;\n"
            "mbarrier.arrive.shared.b64 before, [%0];}" ::"r"(vendor::shared_address(&state))
            : "memory");
    }
    // One arrival, as soon as all asynchronous copies that this thread has started have landed.
    PG_DEVICE void arrive_after_copies() {
        random_delay();
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(vendor::shared_address(&state))
                     : "memory");
    }
    // The phase does not end before those copies have landed; the arrival itself is still to come.
    PG_DEVICE void await_copies() {
        asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(vendor::shared_address(&state)) : "memory");
    }
    PG_DEVICE void wait(u32 phase) {
        random_delay();
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "{.reg .pred done;\n"
            "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
            "@!done bra again;}" ::"r"(vendor::shared_address(&state)),
            "r"(phase)
            : "memory");
#else
        asm volatile(
            "{.reg .pred done;\n"
            "again: mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
            "@!done bra again;}" ::"r"(vendor::shared_address(&state)),
            "r"(phase)
            : "memory");
#endif
        random_delay();
    }
};

}  // namespace pg::arch
