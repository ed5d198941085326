// The CPU as a vendor: a block is one thread of the host, with one wave of one lane. Barriers are nothing, because
// there is nobody to wait for; everything else of the shared code runs as it is.
#pragma once
// No system header: <cmath> and the intrinsics' headers would be half of a kernel's compile time.

#define PG_HD
#define PG_DEVICE inline __attribute__((always_inline))
#define PG_ROLLED
#define PG_UNROLL  // the compiler decides: tiles are deep here, and registers few

// A kernel is called once a block, by any thread. `args` is the by-value argument.
#define PG_ENTRY(symbol, args_type, threads, min_blocks, body)                                  \
    extern "C" void symbol(const void* args, long long block, long long blocks, void* shared) { \
        pg::vendor::detail::current = {block, blocks, static_cast<unsigned char*>(shared)};     \
        body(*static_cast<const args_type*>(args));                                             \
    }

// The compiler's own half type, where the CPU converts it; elsewhere conversions are spelled out below.
#if defined(__F16C__) && (defined(__FLT16_MANT_DIG__) || defined(__clang__))
#define PG_HOST_HALF _Float16
#endif

namespace pg::vendor {

namespace detail {
struct launch {
    long long block, blocks;
    unsigned char* shared;
};
inline thread_local launch current{};
}  // namespace detail

constexpr int wave_size = 1;
constexpr bool widens_to_block(int) { return true; }

inline int thread() { return 0; }
inline long long block() { return detail::current.block; }
inline long long blocks() { return detail::current.blocks; }
inline int cluster_rank() { return 0; }
inline unsigned char* shared_memory() { return detail::current.shared; }
inline void barrier(int) {}

// 16 bytes that nobody will read again: here like any others.
constexpr bool has_load_once = false;
inline void load_once(unsigned* to, const void* from) {
    for (int i = 0; i < 4; i++) to[i] = static_cast<const unsigned*>(from)[i];
}

// Programmatic dependent launch is NVIDIA's (sm_90); here a kernel starts when the one ahead has ended.
inline void let_next_kernel_start() {}
inline void wait_for_prior_kernel() {}

// A pointer that is known to lead to global memory: there is no other here.
template <class T>
inline const T* in_global(const T* p) {
    return p;
}
inline void pair_barrier(int, int) {}

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
inline float exp2(float x) { return __builtin_exp2f(x); }

inline float fp16_to_fp32(unsigned short h) {
#if defined(PG_HOST_HALF)
    PG_HOST_HALF x;
    __builtin_memcpy(&x, &h, 2);
    return float(x);
#else
    const unsigned sign = unsigned(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return bits_to_fp32(sign | 0x7f800000 | (mantissa << 13));
    if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24 is exact
        const float x = float(mantissa) * 0x1p-24f;
        return bits_to_fp32(sign | fp32_to_bits(x));
    }
    return bits_to_fp32(sign | ((exponent + 112) << 23) | (mantissa << 13));
#endif
}

inline unsigned short fp32_to_fp16(float x) {
#if defined(PG_HOST_HALF)
    const PG_HOST_HALF h = PG_HOST_HALF(x);
    unsigned short bits;
    __builtin_memcpy(&bits, &h, 2);
    return bits;
#else
    const unsigned bits = fp32_to_bits(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (unsigned short)(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));  // NaN
    if (magnitude >= 0x477ff000) return (unsigned short)(sign | 0x7c00);  // 65520 and above round to infinity
    if (magnitude < 0x38800000) {  // below 2^-14: a multiple of 2^-24, rounded to nearest even by the addition
        const float shifted = bits_to_fp32(magnitude) + 0.5f;  // ulp of [0.5, 1) is 2^-24
        return (unsigned short)(sign | (fp32_to_bits(shifted) - 0x3f000000));
    }
    const unsigned rounded = magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1);
    return (unsigned short)(sign | (rounded >> 13));
#endif
}

inline unsigned short fp32_to_bf16(float x) {
    const unsigned bits = fp32_to_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (unsigned short)((bits >> 16) | 0x40);  // NaN stays NaN
    return (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline unsigned pack_fp16(float low, float high) { return fp32_to_fp16(low) | unsigned(fp32_to_fp16(high)) << 16; }
inline unsigned pack_bf16(float low, float high) { return fp32_to_bf16(low) | unsigned(fp32_to_bf16(high)) << 16; }

}  // namespace pg::vendor
