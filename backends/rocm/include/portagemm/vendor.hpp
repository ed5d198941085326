// AMD GPUs as a vendor: compiler builtins only, no HIP header and no device library, so that clang without ROCm
// compiles the same text as hiprtc does.
#pragma once

#define PG_HD __attribute__((host, device))
#define PG_DEVICE __attribute__((device, always_inline)) inline
// NOTE: explicit everywhere: without it one LLVM keeps accumulators in registers and the next puts them in scratch.
#define PG_UNROLL _Pragma("unroll")
#define PG_ROLLED _Pragma("clang loop unroll(disable) vectorize(disable) interleave(disable)")

// A kernel of one by-value argument and a one-dimensional block. Two facts set its register budget:
// flat_work_group_size (the default of 1024 would halve the registers of a block of 256) and waves_per_eu, which is
// min_blocks in waves of each of a CU's four SIMDs.
#define PG_ENTRY(symbol, args_type, threads, min_blocks, body)                                                    \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads),                              \
                              amdgpu_waves_per_eu(pg::vendor::detail::waves_per_simd(threads, min_blocks)))) void \
    symbol(const args_type) {                                                                                     \
        body(pg::vendor::detail::arguments<args_type>());                                                         \
    }

namespace pg::vendor {

// Newer compilers no longer say the wave size; CDNA (GFX9) has waves of 64, RDNA runs its kernels in waves of 32.
#if defined(__GFX9__)
constexpr int wave_size = 64;
#elif defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
constexpr int wave_size = 32;
#else
#error "portagemm/vendor.hpp: this AMD target's wave size is not known"
#endif

namespace detail {

// The by-value argument, read in place. NOTE: through the parameter itself LLVM loads all of it on entry and keeps it:
// more scalar registers than there are, so they spill.
template <class T>
PG_DEVICE const T& arguments() {
    using constant = const __attribute__((address_space(4))) T*;
    return *(const T*)(constant)__builtin_amdgcn_kernarg_segment_ptr();
}

constexpr int simds_per_unit = 4;  // CDNA2 ISA, 1.1: a compute unit has four SIMDs

PG_HD constexpr int waves_per_simd(int threads, int min_blocks) {
    const int waves = threads / wave_size * min_blocks;
    return waves < simds_per_unit ? 1 : waves / simds_per_unit;
}

}  // namespace detail

PG_DEVICE int thread() { return int(__builtin_amdgcn_workitem_id_x()); }
PG_DEVICE long long block() { return __builtin_amdgcn_workgroup_id_x(); }
// First of the hidden arguments of code object 5 (LLVM, AMDGPU usage: hidden_block_count_x).
PG_DEVICE long long blocks() {
    using count = const __attribute__((address_space(4))) unsigned;
    return *(count*)__builtin_amdgcn_implicitarg_ptr();
}
PG_DEVICE int cluster_rank() { return 0; }
// Dynamic LDS: the launch says how much. No kernel has static LDS, so it starts at LDS address 0 and any alignment holds.
// NOTE: not a declared array. Its address is filled in after optimization: every access would add that zero.
PG_DEVICE unsigned char* shared_memory() {
    unsigned address = 0;  // a literal 0 would be the null pointer, which here is another address
    return (unsigned char*)(__attribute__((address_space(3))) unsigned char*)address;
}

// 16 bytes that nobody will read again: here like any others.
constexpr bool has_load_once = false;
PG_DEVICE void load_once(unsigned* to, const void* from) {
    for (int i = 0; i < 4; i++) to[i] = static_cast<const unsigned*>(from)[i];
}

// Programmatic dependent launch is NVIDIA's (sm_90); here a kernel starts when the one ahead has ended.
PG_DEVICE void let_next_kernel_start() {}
PG_DEVICE void wait_for_prior_kernel() {}

// A pointer that is known to lead to global memory. What comes out of the argument block has lost its kind, and reads
// through it would be flat instructions, which count as LDS accesses too.
template <class T>
PG_DEVICE const T* in_global(const T* p) {
    return (const T*)(const __attribute__((address_space(1))) T*)p;
}

// Values whose origin the optimizer cannot see, so that what is derived from them is not kept in registers over a loop
// but computed where it is used: one that all lanes agree on, and one of each lane.
PG_DEVICE int opaque_scalar(int x) {
    x = __builtin_amdgcn_readfirstlane(x);
    asm volatile("" : "+s"(x));
    return x;
}
PG_DEVICE int opaque_vector(int x) {
    asm volatile("" : "+v"(x));
    return x;
}

// A value that all lanes are known to share, where the compiler does not know it.
// NOTE: also for what is uniform but was computed by vector instructions (divisions): LLVM would compute all that depends
// on it that way.
PG_DEVICE int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }
PG_DEVICE const void* uniform(const void* p) {
    const unsigned long long x = (unsigned long long)p;
    const unsigned low = uniform(int(x)), high = uniform(int(x >> 32));
    return (const void*)((unsigned long long)(high) << 32 | low);
}

// Any value: registers are named, nothing is computed.
template <class T>
PG_DEVICE T unspecified() {
    T x;
    asm volatile("" : "=v"(x));
    return x;
}

#if defined(__gfx90a__)
// 2x - 1 modulo 2^16 in each half. LLVM would make two instructions of it.
PG_DEVICE unsigned doubled_less_one(unsigned x) {
    unsigned y;
    asm("v_pk_mad_u16 %0, %1, %2, -1" : "=v"(y) : "v"(x), "s"(0x20002));
    return y;
}
#endif

// Of the waves on a SIMD those of a higher priority issue first (CDNA2 ISA, S_SETPRIO).
template <int Level>
PG_DEVICE void priority() {
    __builtin_amdgcn_s_setprio(Level);
}

// No instruction is moved across.
PG_DEVICE void keep_order() { __builtin_amdgcn_sched_barrier(0); }

// How a block of code is to be issued: two matrix instructions, then one of each other kind that is left (LLVM,
// AMDGPU usage: llvm.amdgcn.sched.group.barrier).
PG_DEVICE void spread_step() {
    __builtin_amdgcn_sched_group_barrier(0x008, 2, 0);  // MFMA, WMMA
    __builtin_amdgcn_sched_group_barrier(0x100, 1, 0);  // LDS read
    __builtin_amdgcn_sched_group_barrier(0x002, 2, 0);  // VALU
    __builtin_amdgcn_sched_group_barrier(0x200, 1, 0);  // LDS write
    __builtin_amdgcn_sched_group_barrier(0x020, 1, 0);  // load from global memory
}

// Scopes by number (pg::scope): wave 0, pair 1, block 2, cluster 3. CDNA has no barrier of some of a block's waves, so
// pair means the block here; for lack of clusters, so does cluster.
PG_HD constexpr bool widens_to_block(int scope) { return scope == 1; }

// The fences order LDS; s_barrier (CDNA2 ISA, 4.3) counts waves and orders nothing. Kernels hand nothing from wave to wave
// in global memory. NOTE: where a block runs on two compute units (gfx10 and up), a fence for all of memory would wait for
// every load in flight, the next tile's too; compilers from LLVM 19.1 on can be told (LLVM, AMDGPU usage: amdgpu-synchronize-as).
// 19.0 is a snapshot that may be older than that.
#if __clang_major__ * 100 + __clang_minor__ >= 1901
#define PG_ORDER_LDS , "local"
#else
#define PG_ORDER_LDS
#endif
PG_DEVICE void barrier(int scope) {
    if (scope == 0) {
        __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
        __builtin_amdgcn_wave_barrier();
        __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
    } else {
        __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup" PG_ORDER_LDS);
        __builtin_amdgcn_s_barrier();
        __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup" PG_ORDER_LDS);
    }
}

#undef PG_ORDER_LDS

// A barrier of `lanes` lanes, more than a wave and fewer than the block: there is none, and no atom here asks for one.
template <int Unused = 0>
PG_DEVICE void pair_barrier(int, int) {
    static_assert(Unused != 0, "AMD: no barrier for a group of waves; an atom of a single wave needs none");
}

PG_DEVICE float bits_to_fp32(unsigned bits) { return __builtin_bit_cast(float, bits); }
PG_DEVICE unsigned fp32_to_bits(float x) { return __builtin_bit_cast(unsigned, x); }
PG_DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PG_DEVICE float exp2(float x) { return __builtin_amdgcn_exp2f(x); }  // v_exp_f32: 1 ulp, subnormal results are 0

// v_cvt_f32_f16 and v_cvt_f16_f32 (CDNA2 ISA, VOP1): round to nearest even, subnormals kept by the default mode.
PG_DEVICE float fp16_to_fp32(unsigned short h) { return float(__builtin_bit_cast(_Float16, h)); }
PG_DEVICE unsigned short fp32_to_fp16(float x) { return __builtin_bit_cast(unsigned short, static_cast<_Float16>(x)); }

// gfx90a has no conversion to bf16: round to nearest even on the bits; NaN stays NaN.
PG_DEVICE unsigned short fp32_to_bf16(float x) {
    const unsigned bits = fp32_to_bits(x);
    const unsigned rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return static_cast<unsigned short>((x == x ? rounded : bits | 0x400000) >> 16);
}

// NOTE: not v_cvt_pkrtz_f16_f32, which truncates.
PG_DEVICE unsigned pack_fp16(float low, float high) { return fp32_to_fp16(low) | unsigned(fp32_to_fp16(high)) << 16; }
PG_DEVICE unsigned pack_bf16(float low, float high) { return fp32_to_bf16(low) | unsigned(fp32_to_bf16(high)) << 16; }

}  // namespace pg::vendor
