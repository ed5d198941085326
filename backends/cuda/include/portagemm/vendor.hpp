// NVIDIA: what the shared vocabulary means in CUDA C++. No CUDA header is included; instructions are PTX.
#pragma once

#define PG_HD __host__ __device__
#define PG_DEVICE __device__ __forceinline__
#define PG_UNROLL _Pragma("unroll")
#define PG_ROLLED _Pragma("unroll 1")

// A kernel takes its arguments by value; __grid_constant__ lets descriptors inside them be addressed in place.
#define PG_ENTRY(symbol, args_type, threads, min_blocks, body)                                                         \
    extern "C" __global__ void __launch_bounds__(threads, min_blocks) symbol(const __grid_constant__ args_type args) { \
        body(args);                                                                                                    \
    }

namespace pg::vendor {

constexpr int wave_size = 32;

// Divisions of what is not negative are shifts: compilers have to be told that it is not.
__device__ __forceinline__ int thread() {
    const int x = int(threadIdx.x);
    __builtin_assume(x >= 0 && x < 1024);
    return x;
}
__device__ __forceinline__ long long block() { return blockIdx.x; }
__device__ __forceinline__ long long blocks() { return gridDim.x; }

__device__ __forceinline__ unsigned char* shared_memory() {
    extern __shared__ __align__(1024) unsigned char pg_shared[];
    return pg_shared;
}

// Scopes by number (pg::scope): wave 0, pair 1, block 2, cluster 3.
__host__ __device__ constexpr bool widens_to_block(int scope) { return scope == 1; }  // a pair needs its own barrier
__device__ __forceinline__ void barrier(int scope) {
    if (scope == 0) {
        __syncwarp();
        return;
    }
#if __CUDA_ARCH__ >= 900
    if (scope == 3) {
        asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
        return;
    }
#endif
    __syncthreads();  // without clusters, a cluster is the block
}

// Named barrier 1 + group, for the waves of one group. Barrier 0 is the block's.
__device__ __forceinline__ void pair_barrier(int group, int lanes) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(lanes) : "memory");
}

// Rank of this block in its cluster; 0 without one. The special register exists from sm_90 on.
__device__ __forceinline__ int cluster_rank() {
#if __CUDA_ARCH__ >= 900
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return int(rank);
#else
    return 0;
#endif
}

__device__ __forceinline__ float bits_to_fp32(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float exp2(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));  // 2 ulp, subnormals kept
    return y;
}

__device__ __forceinline__ float fp16_to_fp32(unsigned short h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
__device__ __forceinline__ unsigned short fp32_to_fp16(float x) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
__device__ __forceinline__ unsigned short fp32_to_bf16(float x) {
    unsigned short h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
// cvt.*x2 puts its first source into the upper half.
__device__ __forceinline__ unsigned pack_fp16(float low, float high) {
    unsigned d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    unsigned d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

// A pointer that is known to lead to global memory; the compiler finds out by itself.
template <class T>
__device__ __forceinline__ const T* in_global(const T* p) {
    return p;
}

// 16 bytes that nobody will read again: they leave no trace in the first-level cache, and memory is asked for whole
// lines. Relaxed, since ptxas moves weak and .nc loads below the wait for the kernel ahead, but not these.
constexpr bool has_load_once = true;
__device__ __forceinline__ void load_once(unsigned* to, const void* from) {
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from)
                 : "memory");
}

// Programmatic dependent launch (PTX ISA, griddepcontrol; sm_90). Both do nothing in a kernel that was launched without.
// From here on the next kernel of the stream may start; it waits below for all that this one writes.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Until the kernel before has ended and its writes are seen: nothing it may have written is read earlier, and nothing
// it may read is overwritten earlier.
__device__ __forceinline__ void wait_for_prior_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Address of shared memory as PTX's shared-window instructions take it.
__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

}  // namespace pg::vendor
