// A gfx90a for tests, on the host: lanes of a block are coroutines, each with a stack of its own, that run one after
// another up to the next point where lanes meet. What lanes do together (MFMA, ballot, barriers) is done there, from
// the manual's tables and not from the maps of gfx90a.hpp. LDS begins as NaN, and the order of lanes between two
// meetings is a parameter: a missing barrier gives other numbers in one order or another.
//
// It runs the backend's own sources (atoms, copies, schedules) with this folder first on the include path, in place of
// the backend's vendor.hpp. It says nothing of what a compiler makes of them, nor of waits inside a wave.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __gfx90a__ 1

#define PG_HD
#define PG_DEVICE inline __attribute__((always_inline))
#define PG_UNROLL
#define PG_ROLLED

// Runs all blocks on stacks of the caller's (stack_bytes a lane); returns null, or what went wrong (a static text).
#define PG_ENTRY(symbol, args_type, threads, min_blocks, body)                                                       \
    extern "C" const char* symbol(const void* args, long long blocks, int lanes, long long lds_bytes, unsigned seed, \
                                  unsigned char* stacks) {                                                           \
        if (lanes != (threads)) return "the launch has another number of threads than the kernel";                   \
        return pg::vendor::emulator::launch(                                                                         \
            blocks, lanes, lds_bytes, seed, stacks, [](const void* a) { body(*static_cast<const args_type*>(a)); },  \
            args);                                                                                                   \
    }

namespace pg::vendor {

constexpr int wave_size = 64;

namespace emulator {

constexpr size_t stack_bytes = 256 * 1024, guard_bytes = 4096;
constexpr unsigned char guard_byte = 0xa5;

// What lanes of a wave can meet for, and all waves of a block.
enum class meeting { none, wave_barrier, ballot, mfma, block_barrier };

struct instruction {
    int m, k;
    bool sixteen_bit, bf16;
    bool operator==(const instruction&) const = default;
};

struct lane_state {
    ucontext_t start;
    jmp_buf resume;
    bool started = false, done = false;
    meeting waits = meeting::none;
    instruction issue{};
    unsigned char a[8], b[8];  // operands of an MFMA
    float c[16];               // accumulators, in and out
    bool flag = false;         // of a ballot, in and out
};

struct machine {
    std::vector<lane_state> lanes;
    unsigned char* stacks = nullptr;
    std::vector<unsigned char> lds;
    jmp_buf scheduler;
    int current = 0;
    long long block = 0, blocks = 0;
    const char* error = nullptr;
    void (*kernel)(const void*) = nullptr;
    const void* args = nullptr;
};
inline machine* now = nullptr;

inline float half_to_float(unsigned short bits, bool bf16, bool flush) {
    const unsigned magnitude = bits & 0x7fff;
    if (flush && magnitude < (bf16 ? 0x80u : 0x400u)) return 0.0f;  // MI200 takes subnormals for zero
    if (bf16) return __builtin_bit_cast(float, unsigned(bits) << 16);
    return float(__builtin_bit_cast(_Float16, bits));
}

// AMD CDNA2 ISA: A[i][k] is in lane i + M * (k / held), element k % held; B[k][j] likewise;
// D[i][j] in lane j + M * (i / 4 % groups), register 4 * (i / 4 / groups) + i % 4.
inline void execute_mfma(lane_state* wave, const instruction& op) {
    const int groups = 64 / op.m, held = op.k / groups;
    auto element = [&](const unsigned char* registers, int index) {
        if (!op.sixteen_bit) {
            float x;
            std::memcpy(&x, registers + 4 * index, 4);
            return x;
        }
        unsigned short x;
        std::memcpy(&x, registers + 2 * index, 2);
        return half_to_float(x, op.bf16, true);
    };
    double left[32][16], right[32][16];
    for (int i = 0; i < op.m; i++) {
        for (int k = 0; k < op.k; k++) {
            left[i][k] = element(wave[i + op.m * (k / held)].a, k % held);
            right[i][k] = element(wave[i + op.m * (k / held)].b, k % held);
        }
    }
    for (int i = 0; i < op.m; i++) {
        for (int j = 0; j < op.m; j++) {
            float& d = wave[j + op.m * (i / 4 % groups)].c[4 * (i / 4 / groups) + i % 4];
            double sum = d;
            for (int k = 0; k < op.k; k++) sum += left[i][k] * right[j][k];
            d = float(sum);
        }
    }
}

[[noreturn]] inline void fail(const char* what) {
    now->error = what;
    _longjmp(now->scheduler, 1);
}

// Called in a lane: gives control back until the others are there.
inline __attribute__((noinline)) void meet(meeting what) {
    lane_state& self = now->lanes[now->current];
    self.waits = what;
    if (_setjmp(self.resume) == 0) _longjmp(now->scheduler, 1);
}

// Lets the lanes from first to first + count go on if all of them wait for the same thing.
inline void release(int first, int count, meeting what) {
    lane_state* lane = &now->lanes[first];
    for (int i = 0; i < count; i++) {
        if (lane[i].waits != what || lane[i].done) return;
    }
    if (what == meeting::mfma) {
        for (int i = 1; i < count; i++) {
            if (!(lane[i].issue == lane[0].issue)) fail("lanes of a wave issue different MFMAs");
        }
        execute_mfma(lane, lane[0].issue);
    } else if (what == meeting::ballot) {
        bool any = false;
        for (int i = 0; i < count; i++) any |= lane[i].flag;
        for (int i = 0; i < count; i++) lane[i].flag = any;
    }
    for (int i = 0; i < count; i++) lane[i].waits = meeting::none;
}

inline void begin_lane() {
    now->kernel(now->args);
    now->lanes[now->current].done = true;
    _longjmp(now->scheduler, 1);
}

// Runs one lane up to its next meeting, and lets those go on who now have all met.
inline void advance(int index, int count) {
    machine& m = *now;
    lane_state& lane = m.lanes[index];
    m.current = index;
    if (_setjmp(m.scheduler) == 0) {
        if (lane.started) _longjmp(lane.resume, 1);
        lane.started = true;
        getcontext(&lane.start);
        lane.start.uc_stack.ss_sp = m.stacks + stack_bytes * index;
        lane.start.uc_stack.ss_size = stack_bytes;
        lane.start.uc_link = nullptr;
        makecontext(&lane.start, begin_lane, 0);
        setcontext(&lane.start);
    }
    if (m.error) return;
    const meeting what = m.lanes[m.current].waits;
    if (what == meeting::block_barrier) {
        release(0, count, what);
    } else if (what != meeting::none) {
        release(m.current / wave_size * wave_size, wave_size, what);
    }
}

// One block: lanes in the order given, again and again, until all are done. Greedy: one wave runs as far as it can
// before another one moves; else waves keep step.
inline void run_block(const std::vector<int>& order, bool greedy) {
    machine& m = *now;
    const int count = int(m.lanes.size());
    for (lane_state& lane : m.lanes) {
        lane.started = lane.done = false;
        lane.waits = meeting::none;
    }
    std::memset(m.lds.data(), 0xff, m.lds.size() - guard_bytes);
    std::memset(m.lds.data() + m.lds.size() - guard_bytes, guard_byte, guard_bytes);
    auto ready = [&](int index) { return !m.lanes[index].done && m.lanes[index].waits == meeting::none; };
    for (bool progress = true; progress && !m.error;) {
        progress = false;
        for (int at = 0; at < count && !m.error; at++) {
            const int wave = order[at] / wave_size;
            for (bool again = ready(order[at]); again && !m.error;) {
                progress = true;
                again = false;
                if (!greedy) {
                    advance(order[at], count);
                    continue;
                }
                for (int i = 0; i < count && !m.error; i++) {
                    if (order[i] / wave_size == wave && ready(order[i])) {
                        advance(order[i], count);
                        again = true;
                    }
                }
            }
        }
    }
    for (int i = 0; i < count && !m.error; i++) {
        if (!m.lanes[i].done) m.error = "lanes wait for each other at different places";
    }
    for (size_t i = m.lds.size() - guard_bytes; i < m.lds.size() && !m.error; i++) {
        if (m.lds[i] != guard_byte) m.error = "LDS was written beyond what the launch asked for";
    }
}

// seed 0: lanes in order; 1: in reverse; others: shuffled, differently for each block. Odd seeds are greedy.
inline const char* launch(long long blocks, int lanes, long long lds_bytes, unsigned seed, unsigned char* stacks,
                          void (*kernel)(const void*), const void* args) {
    machine m;
    m.lanes.resize(lanes);
    m.stacks = stacks;
    m.lds.resize(lds_bytes + 1024 + guard_bytes);
    m.blocks = blocks;
    m.kernel = kernel;
    m.args = args;
    now = &m;
    std::vector<int> order(lanes);
    for (int i = 0; i < lanes; i++) order[i] = seed == 1 ? lanes - 1 - i : i;
    unsigned random = seed;
    for (m.block = 0; m.block < blocks && !m.error; m.block++) {
        for (int i = lanes - 1; seed > 1 && i > 0; i--) {
            random = random * 1664525 + 1013904223;
            std::swap(order[i], order[(random >> 8) % (i + 1)]);
        }
        run_block(order, seed % 2 != 0);
    }
    now = nullptr;
    return m.error;
}

template <class Words, class C>
inline C mfma(const instruction& op, Words a, Words b, C c) {
    lane_state& self = now->lanes[now->current];
    self.issue = op;
    std::memcpy(self.a, &a, sizeof(a));
    std::memcpy(self.b, &b, sizeof(b));
    std::memcpy(self.c, &c, sizeof(c));
    meet(meeting::mfma);
    std::memcpy(&c, self.c, sizeof(c));
    return c;
}

}  // namespace emulator

inline int thread() { return emulator::now->current; }
inline long long block() { return emulator::now->block; }
inline long long blocks() { return emulator::now->blocks; }
inline int cluster_rank() { return 0; }
inline unsigned char* shared_memory() {
    const auto at = reinterpret_cast<unsigned long long>(emulator::now->lds.data());
    return reinterpret_cast<unsigned char*>((at + 1023) / 1024 * 1024);
}
constexpr bool widens_to_block(int scope) { return scope == 1; }
inline void barrier(int scope) {
    emulator::meet(scope == 0 ? emulator::meeting::wave_barrier : emulator::meeting::block_barrier);
}
template <int Unused = 0>
void pair_barrier(int, int) {
    static_assert(Unused != 0, "AMD: no barrier for a group of waves");
}

inline int opaque_scalar(int x) { return x; }
inline int opaque_vector(int x) { return x; }

inline int uniform(int x) { return x; }
inline const void* uniform(const void* p) { return p; }
template <class T>
inline T unspecified() {  // not zero: what is unspecified must not matter
    T x;
    std::memset(&x, 0xff, sizeof(x));
    return x;
}
template <int Level>
inline void priority() {}
inline void keep_order() {}
inline void spread_step() {}
inline unsigned doubled_less_one(unsigned x) {
    return unsigned((unsigned short)(2 * x - 1)) | unsigned((unsigned short)(2 * (x >> 16) - 1)) << 16;
}

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
    return p;
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

// The instructions by the names gfx90a.hpp calls them.
inline bool pg_any_lane(bool x) {
    using namespace pg::vendor::emulator;
    lane_state& self = now->lanes[now->current];
    self.flag = x;
    meet(meeting::ballot);
    return self.flag;
}
#define __builtin_amdgcn_ballot_w64(x) (pg_any_lane(x) ? ~0ull : 0ull)

#define PG_EMULATED_MFMA(m, k, sixteen_bit, bf16, a, b, c) \
    pg::vendor::emulator::mfma(pg::vendor::emulator::instruction{m, k, sixteen_bit, bf16}, a, b, c)
#define __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, ...) PG_EMULATED_MFMA(32, 8, true, false, a, b, c)
#define __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, ...) PG_EMULATED_MFMA(16, 16, true, false, a, b, c)
#define __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, ...) PG_EMULATED_MFMA(32, 8, true, true, a, b, c)
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, ...) PG_EMULATED_MFMA(16, 16, true, true, a, b, c)
#define __builtin_amdgcn_mfma_f32_32x32x2f32(a, b, c, ...) PG_EMULATED_MFMA(32, 2, false, false, a, b, c)
#define __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, ...) PG_EMULATED_MFMA(16, 4, false, false, a, b, c)
