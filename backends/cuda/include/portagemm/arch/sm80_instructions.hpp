// Instructions of sm_80 and up, each a function: what tests/host/emulated/sm80 replaces to run kernels on the host.
// PTX ISA sections: 9.7.14 (mma.sync, ldmatrix), 9.7.9.25 (cp.async).
#pragma once
#include <portagemm/dtypes.hpp>

namespace pg::arch {

// ldmatrix: each lane names one 16-byte row of an 8x8 matrix of 16-bit elements; register r of a lane receives row
// lane / 4, columns 2 * (lane % 4) and the next, of matrix r. With .trans the matrix arrives transposed.
template <bool Transpose>
PG_DEVICE void ldmatrix_x4(u32 (&r)[4], const u8* row) {
    const u32 at = vendor::shared_address(row);
    if constexpr (Transpose) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    }
}

// D (16 x 8, fp32) += A (16 x 16) * B (8 x 16)^T. "Matrix Fragments for mma.m16n8k16 with floating point type".
template <class T>
PG_DEVICE void mma_m16n8k16(f32& c0, f32& c1, f32& c2, f32& c3, const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (same_type<T, fp16>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        static_assert(same_type<T, bf16>);
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

// D (16 x 8, fp32) += A (16 x 8) * B (8 x 8)^T.
PG_DEVICE void mma_m16n8k8_tf32(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Without this the unit would truncate: an error up to twice as large, and always towards zero.
PG_DEVICE u32 round_to_tf32(f32 x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

// The compiler may not compute a value anew where it is used: it stays in a register.
PG_DEVICE void hold(i32& x) { asm volatile("" : "+r"(x)); }
PG_DEVICE void hold(i64& x) { asm volatile("" : "+l"(x)); }
template <class T>
PG_DEVICE void hold(T*& x) {
    asm volatile("" : "+l"(x));
}

// Starts a copy of Width bytes to shared memory; zeros where `inside` is false, and `from` is not read.
template <int Width>
PG_DEVICE void copy_chunk(u8* stage, const void* from, bool inside) {
    const u32 to = vendor::shared_address(stage);
    if constexpr (Width == 16) {
        asm volatile(
            "{.reg .pred outside;\n"
            "setp.eq.s32 outside, %2, 0;\n"
            "cp.async.cg.shared.global [%0], [%1], 16, outside;}" ::"r"(to),
            "l"(from), "r"(i32(inside))
            : "memory");
    } else {
        asm volatile(
            "{.reg .pred outside;\n"
            "setp.eq.s32 outside, %3, 0;\n"
            "cp.async.ca.shared.global [%0], [%1], %2, outside;}" ::"r"(to),
            "l"(from), "n"(Width), "r"(i32(inside))
            : "memory");
    }
}

// The same for the first `valid` bytes, then zeros.
template <int Width>
PG_DEVICE void copy_part(u8* stage, const void* from, i32 valid) {
    const u32 to = vendor::shared_address(stage);
    if constexpr (Width == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Width), "r"(valid)
                     : "memory");
    }
}

// Groups of this thread's asynchronous copies: wait until at most `Pending` of the newest are still under way.
PG_DEVICE void close_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending>
PG_DEVICE void wait_copy_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace pg::arch
