// A vendor for the host on which headers of any vendor compile, so that maps, layouts, addresses and argument blocks of
// every arch can be checked on any machine. Include this folder first, then the backend's. Instructions do nothing
// here, but the shared-memory addresses that they are given are recorded: a check calls the very function that a kernel
// calls.
#pragma once
#include <vector>

#define PG_HD
#define PG_DEVICE inline
#define PG_ROLLED
#define PG_UNROLL
#define PG_ENTRY(symbol, args_type, threads, min_blocks, body) using symbol##_args = args_type;

#ifndef PG_CHECK_WAVE_SIZE
#define PG_CHECK_WAVE_SIZE 32
#endif

namespace pg::vendor {

constexpr int wave_size = PG_CHECK_WAVE_SIZE;
constexpr bool widens_to_block(int scope) { return scope == 1; }

// Which block runs: a check sets it.
inline long long block_now = 0, blocks_now = 1;
inline int rank_now = 0;

inline int thread() { return 0; }
inline long long block() { return block_now; }
inline long long blocks() { return blocks_now; }
inline int cluster_rank() { return rank_now; }
inline unsigned char* shared_memory() { return nullptr; }
inline void barrier(int) {}
inline void pair_barrier(int, int) {}

// Shared addresses count from `shared_base`. Each that code computes, to give it to an instruction, is kept.
inline const unsigned char* shared_base = nullptr;
inline std::vector<unsigned> addresses;
struct shared_address_in_use {
    unsigned value;
    shared_address_in_use operator+(int offset) const { return {value + unsigned(offset)}; }
    operator unsigned() const {
        addresses.push_back(value);
        return value;
    }
};
inline shared_address_in_use shared_address(const void* p) {
    return {unsigned(static_cast<const unsigned char*>(p) - shared_base)};
}

// 16 bytes that nobody will read again: here like any others.
constexpr bool has_load_once = false;
inline void load_once(unsigned* to, const void* from) {
    for (int i = 0; i < 4; i++) to[i] = static_cast<const unsigned*>(from)[i];
}

// Nothing is launched here, so nothing is waited for.
inline void let_next_kernel_start() {}
inline void wait_for_prior_kernel() {}

template <class T>
inline const T* in_global(const T* p) {
    return p;
}

inline float bits_to_fp32(unsigned bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}
inline unsigned fp32_to_bits(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// GPUs' exp2 is approximate: a check sets the relative error that it may have, in units of 2^-23.
inline float exp2_error = 0;
inline float exp2(float x) { return __builtin_exp2f(x) * (1.0f + exp2_error * 0x1p-23f); }
// Conversions are checked where they run (tests/host, tests/device); here they only have to exist.
inline float fp16_to_fp32(unsigned short) { return 0; }
inline unsigned short fp32_to_fp16(float) { return 0; }
inline unsigned short fp32_to_bf16(float x) { return (unsigned short)(fp32_to_bits(x) >> 16); }
inline unsigned pack_fp16(float, float) { return 0; }
inline unsigned pack_bf16(float, float) { return 0; }

}  // namespace pg::vendor

// From here on `asm volatile(...)` and `asm(...)` are empty: instructions of another machine. (An `asm` that is not
// followed by a bracket is no use of the first macro; the second turns what follows it into an empty statement.)
#define asm(...) asm("")
#define volatile(...) ("")
