// An sm_80 for tests, on the host: lanes of a block are coroutines that run one after another up to the next point where
// lanes meet (as in ../../include, the emulated gfx90a). What lanes do together (ldmatrix, mma.sync, barriers) is done
// there, from the PTX ISA's tables and not from the maps of sm80.hpp. Shared memory begins as NaN.
//
// Asynchronous copies land either at once or as late as the code's waits allow, by the seed; the order of lanes between two
// meetings is shuffled by it too. So a missing wait or barrier gives other numbers with one seed or another.
//
// It runs the backend's own sources with this folder first on the include path, in place of vendor.hpp,
// arch/sm80_instructions.hpp and arch/mbarrier.hpp.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#define PG_HD
#define PG_DEVICE inline __attribute__((always_inline))
#define PG_UNROLL
#define PG_ROLLED

// Runs all blocks; returns null, or what went wrong (a static text).
#define PG_ENTRY(symbol, args_type, threads, min_blocks, body)                                                     \
    extern "C" const char* symbol(const void* args, long long blocks, int lanes, long long bytes, unsigned seed) { \
        if (lanes != (threads)) return "the launch has another number of threads than the kernel";                 \
        return pg::vendor::emulator::launch(                                                                       \
            blocks, lanes, bytes, seed, [](const void* a) { body(*static_cast<const args_type*>(a)); }, args);     \
    }

namespace pg::vendor {

constexpr int wave_size = 32;

namespace emulator {

constexpr size_t stack_bytes = 128 * 1024;

// What lanes of a wave can meet for, all waves of a block, and one lane alone (the end of a barrier's phase).
enum class meeting { none, wave_barrier, ldmatrix, mma, block_barrier, phase };

struct copy {
    void* to;
    const void* from;
    int width, valid, group;
    void land() const {
        std::memset(to, 0, width);
        if (valid > 0) std::memcpy(to, from, valid);
    }
};

struct lane_state {
    ucontext_t start;
    jmp_buf resume;
    bool started = false, done = false;
    meeting waits = meeting::none;
    const unsigned char* row = nullptr;  // of an ldmatrix
    bool transpose = false, bf16 = false, tf32 = false;
    unsigned a[4], b[2];  // operands of an mma; a also the result of an ldmatrix
    float c[4];
    const std::uint64_t* barrier = nullptr;  // of a wait, and its phase
    unsigned phase = 0;
    std::vector<copy> pending;
    int group = 0;
};

// An arrival that takes place once copies have landed.
struct arrival {
    std::vector<copy> copies;
    std::uint64_t* barrier;
};

struct machine {
    std::vector<lane_state> lanes;
    std::vector<unsigned char> stacks, shared;
    std::vector<arrival> arrivals;
    jmp_buf scheduler;
    int current = 0;
    bool eager = false;
    long long block = 0, blocks = 0;
    const char* error = nullptr;
    void (*kernel)(const void*) = nullptr;
    const void* args = nullptr;
};
inline machine* now = nullptr;

// First and last byte but one of what may be read through in_global, for as many operands as a test names; none: all.
extern "C" inline long long pg_readable[6] = {};

inline const void* checked(const void* p, int bytes) {
    const auto first = static_cast<long long>(reinterpret_cast<std::uintptr_t>(p));
    bool known = false;
    for (int i = 0; i < 6; i += 2) {
        if (pg_readable[i + 1] == 0) continue;
        if (first >= pg_readable[i] && first + bytes <= pg_readable[i + 1]) return p;
        known = true;
    }
    static const unsigned char nothing[16] = {};
    if (known) now->error = "bytes of no operand are read";
    return known ? nothing : p;
}

inline lane_state& self() { return now->lanes[now->current]; }
inline unsigned char* shared() {
    const auto at = reinterpret_cast<std::uintptr_t>(now->shared.data());
    return reinterpret_cast<unsigned char*>((at + 1023) / 1024 * 1024);
}

// Bits 0-19 of a barrier: arrivals to come; 20-39: arrivals of a phase; 40: the phase.
inline void count(std::uint64_t& state, int arrivals) {
    const std::uint64_t expected = state >> 20 & 0xfffff;
    std::int64_t left = std::int64_t(state & 0xfffff) + arrivals;
    if (left < 0) now->error = "more arrivals at a barrier than it counts";
    state = left > 0 ? (state & ~std::uint64_t(0xfffff)) | std::uint64_t(left)
                     : ((state ^ std::uint64_t(1) << 40) & std::uint64_t(1) << 40) | expected << 20 | expected;
}

inline float value(unsigned word, int half, bool bf16) {
    const unsigned short bits = static_cast<unsigned short>(word >> (16 * half));
    return bf16 ? __builtin_bit_cast(float, unsigned(bits) << 16) : float(__builtin_bit_cast(_Float16, bits));
}

// PTX ISA, ldmatrix: register j of lane l gets row l / 4 of matrix j, its elements 2 * (l % 4) and the next; matrix j's rows
// are named by lanes 8 * j and up.
inline void execute_ldmatrix(lane_state* wave) {
    for (int lane = 0; lane < 32; lane++) {
        for (int j = 0; j < 4; j++) {
            unsigned short pair[2];
            for (int x = 0; x < 2; x++) {
                const int row = wave[lane].transpose ? lane % 4 * 2 + x : lane / 4;
                const int col = wave[lane].transpose ? lane / 4 : lane % 4 * 2 + x;
                std::memcpy(&pair[x], wave[8 * j + row].row + 2 * col, 2);
            }
            wave[lane].a[j] = pair[0] | unsigned(pair[1]) << 16;
        }
    }
}

// PTX ISA, mma.m16n8k16 and m16n8k8 (tf32): group = lane / 4 is a row of A and C and a column of B.
inline void execute_mma(lane_state* wave) {
    double left[16][16], right[8][16];
    const bool tf32 = wave[0].tf32;
    const int depth = tf32 ? 8 : 16;
    for (int lane = 0; lane < 32; lane++) {
        const lane_state& l = wave[lane];
        const int group = lane / 4, in = lane % 4;
        for (int i = 0; i < 4; i++) {
            const int row = group + 8 * (i % 2);
            if (tf32) {
                left[row][in + 4 * (i / 2)] = __builtin_bit_cast(float, l.a[i]);
                if (i < 2) right[group][in + 4 * i] = __builtin_bit_cast(float, l.b[i]);
                continue;
            }
            for (int x = 0; x < 2; x++) {
                left[row][2 * in + x + 8 * (i / 2)] = value(l.a[i], x, l.bf16);
                if (i < 2) right[group][2 * in + x + 8 * i] = value(l.b[i], x, l.bf16);
            }
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i / 2), col = lane % 4 * 2 + i % 2;
            double sum = wave[lane].c[i];
            for (int k = 0; k < depth; k++) sum += left[row][k] * right[col][k];
            wave[lane].c[i] = float(sum);
        }
    }
}

// Called in a lane: gives control back until what it waits for is there.
inline __attribute__((noinline)) void meet(meeting what) {
    lane_state& lane = self();
    lane.waits = what;
    if (_setjmp(lane.resume) == 0) _longjmp(now->scheduler, 1);
}

// Lets lanes go on if all that must be there are, those that have ended not counted.
inline bool release(int first, int lanes, meeting what) {
    lane_state* lane = &now->lanes[first];
    for (int i = 0; i < lanes; i++) {
        if (lane[i].waits != what || lane[i].done) return false;
    }
    if (what == meeting::ldmatrix) execute_ldmatrix(lane);
    if (what == meeting::mma) execute_mma(lane);
    for (int i = 0; i < lanes; i++) lane[i].waits = meeting::none;
    return true;
}

inline void land_oldest() {
    arrival first = std::move(now->arrivals.front());
    now->arrivals.erase(now->arrivals.begin());
    for (const copy& c : first.copies) c.land();
    count(*first.barrier, -1);
}

inline void begin_lane() {
    now->kernel(now->args);
    self().done = true;
    _longjmp(now->scheduler, 1);
}

inline void resume(int index) {
    machine& m = *now;
    lane_state& lane = m.lanes[index];
    m.current = index;
    if (_setjmp(m.scheduler) != 0) return;
    if (lane.started) _longjmp(lane.resume, 1);
    lane.started = true;
    getcontext(&lane.start);
    lane.start.uc_stack.ss_sp = m.stacks.data() + stack_bytes * index;
    lane.start.uc_stack.ss_size = stack_bytes;
    lane.start.uc_link = nullptr;
    makecontext(&lane.start, begin_lane, 0);
    setcontext(&lane.start);
}

// Whether a lane may run, now that others have.
inline bool ready(lane_state& lane) {
    if (lane.waits == meeting::phase && (*lane.barrier >> 40 & 1) != lane.phase) lane.waits = meeting::none;
    return !lane.done && lane.waits == meeting::none;
}

// One block: lanes in the order given, again and again, until all are done.
inline void run_block(const std::vector<int>& order) {
    machine& m = *now;
    const int lanes = int(m.lanes.size());
    for (lane_state& lane : m.lanes) {
        lane.started = lane.done = false;
        lane.waits = meeting::none;
        lane.pending.clear();
    }
    std::memset(m.shared.data(), 0xff, m.shared.size());
    for (bool progress = true; progress && !m.error;) {
        progress = false;
        for (int at = 0; at < lanes && !m.error; at++) {
            const int index = order[at];
            if (!ready(m.lanes[index])) continue;
            progress = true;
            resume(index);
            const meeting what = m.lanes[index].waits;
            if (what == meeting::block_barrier) {
                release(0, lanes, what);
            } else if (what != meeting::none && what != meeting::phase) {
                release(index / wave_size * wave_size, wave_size, what);
            }
            if (m.eager && !m.arrivals.empty()) land_oldest();
        }
        if (!progress && !m.arrivals.empty()) {
            land_oldest();
            progress = true;
        }
    }
    for (const lane_state& lane : m.lanes) {
        if (!lane.done && !m.error) m.error = "lanes wait for what never comes";
    }
}

// Odd seeds: copies land at once. Lanes are in order for seeds 0 and 1, otherwise shuffled, differently for each block.
inline const char* launch(long long blocks, int lanes, long long bytes, unsigned seed, void (*kernel)(const void*),
                          const void* args) {
    machine m;
    m.lanes.resize(lanes);
    m.stacks.resize(stack_bytes * lanes);
    m.shared.resize(bytes + 1024);
    m.eager = seed % 2 == 1;
    m.blocks = blocks;
    m.kernel = kernel;
    m.args = args;
    now = &m;
    std::vector<int> order(lanes);
    for (int i = 0; i < lanes; i++) order[i] = i;
    unsigned random = seed;
    for (m.block = 0; m.block < blocks && !m.error; m.block++) {
        for (int i = lanes - 1; seed > 1 && i > 0; i--) {
            random = random * 1664525 + 1013904223;
            std::swap(order[i], order[(random >> 8) % (i + 1)]);
        }
        run_block(order);
    }
    now = nullptr;
    return m.error;
}

}  // namespace emulator

inline int thread() { return emulator::now->current; }
inline long long block() { return emulator::now->block; }
inline long long blocks() { return emulator::now->blocks; }
inline int cluster_rank() { return 0; }
inline unsigned char* shared_memory() { return emulator::shared(); }
constexpr bool widens_to_block(int scope) { return scope == 1; }
inline void barrier(int scope) {
    emulator::meet(scope == 0 ? emulator::meeting::wave_barrier : emulator::meeting::block_barrier);
}
inline void pair_barrier(int, int) {}

// 16 bytes that nobody will read again: here like any others.
constexpr bool has_load_once = false;
inline void load_once(unsigned* to, const void* from) {
    for (int i = 0; i < 4; i++) to[i] = static_cast<const unsigned*>(from)[i];
}

// Programmatic dependent launch is NVIDIA's (sm_90); here a kernel starts when the one ahead has ended.
inline void let_next_kernel_start() {}
inline void wait_for_prior_kernel() {}

template <class T>
inline const T* in_global(const T* p) {
    return static_cast<const T*>(emulator::checked(p, sizeof(T)));
}

inline float bits_to_fp32(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline unsigned fp32_to_bits(float x) { return __builtin_bit_cast(unsigned, x); }
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float exp2(float x) { return std::exp2(x); }
inline float fp16_to_fp32(unsigned short h) { return float(__builtin_bit_cast(_Float16, h)); }
inline unsigned short fp32_to_fp16(float x) { return __builtin_bit_cast(unsigned short, static_cast<_Float16>(x)); }
inline unsigned short fp32_to_bf16(float x) {
    const unsigned bits = fp32_to_bits(x);
    const unsigned rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return static_cast<unsigned short>((x == x ? rounded : bits | 0x400000) >> 16);
}
inline unsigned pack_fp16(float low, float high) { return fp32_to_fp16(low) | unsigned(fp32_to_fp16(high)) << 16; }
inline unsigned pack_bf16(float low, float high) { return fp32_to_bf16(low) | unsigned(fp32_to_bf16(high)) << 16; }

}  // namespace pg::vendor
