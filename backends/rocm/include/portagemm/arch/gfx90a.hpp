// Matrix atoms of gfx90a (MI200). Maps and instructions: AMD "CDNA2" Instruction Set Architecture, chapter 7, and
// AMD's matrix instruction calculator (--architecture cdna2 --instruction ... --register-layout).
//
// Each is one block computed by a wave of 64. With g = lane / M, a lane's group, and e = K * M / 64 elements of K held
// by a lane for one instruction:
//   A  element i: row lane % M, k = g * e + i        B  element i: column lane % N, k = g * e + i
//   C  register r: column lane % N, and row 8 * (r / 4) + 4 * g + r % 4 of 32x32, row 4 * g + r of 16x16
//
// NOTE: MI200 flushes subnormal fp16 and bf16 operands and results of these instructions to zero (PyTorch, "Numerical
// accuracy", on AMD Instinct MI200 devices); the fp32 ones keep them. The backend's README says what follows.
#pragma once
#include <portagemm/concepts.hpp>
#include <portagemm/dtypes.hpp>
#include <portagemm/operand_path.hpp>

namespace pg::arch {

template <int N>
struct f32_vector {
    typedef f32 type __attribute__((vector_size(N * 4)));
};
template <int N>
struct u32_vector {
    typedef u32 type __attribute__((vector_size(N * 4)));
};
template <>
struct u32_vector<1> {
    using type = u32;
};

#if defined(__gfx90a__)
#define PG_GFX90A_INSTRUCTION(mnemonic, expression) return expression
typedef _Float16 half4 __attribute__((vector_size(8)));  // fp16 operands
typedef short short4 __attribute__((vector_size(8)));    // bf16 operands, by their bits
#else
#define PG_GFX90A_INSTRUCTION(mnemonic, expression)                                               \
    static_assert(unsupported<C>, mnemonic " is an instruction of gfx90a; this target lacks it"); \
    return c
#endif

// Instructions as data: shape, element, and operands as the registers hold them (u32 words).
template <int M, int K, class Element>
struct shape {
    using element = Element;
    static constexpr i32 m = M, n = M, k = K;
    static constexpr i32 groups = 64 / M, held = K / groups, c_size = M * M / 64;
    using words = typename u32_vector<held * i32(sizeof(Element)) / 4>::type;
};

struct f32_32x32x8_f16 : shape<32, 8, fp16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A_INSTRUCTION("v_mfma_f32_32x32x8f16",
                              __builtin_amdgcn_mfma_f32_32x32x8f16((half4)a, (half4)b, c, 0, 0, 0));
    }
};
struct f32_16x16x16_f16 : shape<16, 16, fp16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A_INSTRUCTION("v_mfma_f32_16x16x16f16",
                              __builtin_amdgcn_mfma_f32_16x16x16f16((half4)a, (half4)b, c, 0, 0, 0));
    }
};
struct f32_32x32x8_bf16 : shape<32, 8, bf16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A_INSTRUCTION("v_mfma_f32_32x32x8bf16_1k",
                              __builtin_amdgcn_mfma_f32_32x32x8bf16_1k((short4)a, (short4)b, c, 0, 0, 0));
    }
};
struct f32_16x16x16_bf16 : shape<16, 16, bf16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A_INSTRUCTION("v_mfma_f32_16x16x16bf16_1k",
                              __builtin_amdgcn_mfma_f32_16x16x16bf16_1k((short4)a, (short4)b, c, 0, 0, 0));
    }
};
struct f32_32x32x2_f32 : shape<32, 2, f32> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A_INSTRUCTION(
            "v_mfma_f32_32x32x2f32",
            __builtin_amdgcn_mfma_f32_32x32x2f32(vendor::bits_to_fp32(a), vendor::bits_to_fp32(b), c, 0, 0, 0));
    }
};
struct f32_16x16x4_f32 : shape<16, 4, f32> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A_INSTRUCTION(
            "v_mfma_f32_16x16x4f32",
            __builtin_amdgcn_mfma_f32_16x16x4f32(vendor::bits_to_fp32(a), vendor::bits_to_fp32(b), c, 0, 0, 0));
    }
};

// An atom chains Chain instructions, so that a lane reads 16 bytes of K at once: ds_read_b128 is free of bank conflicts
// in the swizzled stage, while narrower reads meet in pairs. Element i goes to instruction i / held, and the k it
// stands for becomes g * held * Chain + i: any assignment is right that A and B share. Chain 1 is the manual's map.
template <class Instruction, int Chain>
struct mfma {
    using element = typename Instruction::element;
    static constexpr i32 lanes = 64;
    static constexpr i32 m = Instruction::m, n = Instruction::n, k = Instruction::k * Chain;
    static constexpr i32 a_size = Instruction::held * Chain, b_size = a_size, c_size = Instruction::c_size;
    static constexpr i32 a_run = a_size, b_run = b_size, c_run = 1;
    struct alignas(16) a_fragment {
        element x[a_size];
    };
    struct alignas(16) b_fragment {
        element x[b_size];
    };

    PG_HD static constexpr coord a(i32 lane, i32 i) { return {lane % m, lane / m * a_size + i}; }
    PG_HD static constexpr coord b(i32 lane, i32 i) { return {lane % n, lane / n * b_size + i}; }
    PG_HD static constexpr coord c(i32 lane, i32 r) {
        constexpr i32 rows = 4 * Instruction::groups;  // rows of the block that four registers cover
        return {r / 4 * rows + 4 * (lane / n) + r % 4, lane % n};
    }

    template <class Stage>
    PG_DEVICE static void read_a(a_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        read_by_map<Stage, a_run>(f.x, stage, mn, kk, lane, [](i32 l, i32 i) { return a(l, i); });
    }
    template <class Stage>
    PG_DEVICE static void read_b(b_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        read_by_map<Stage, b_run>(f.x, stage, mn, kk, lane, [](i32 l, i32 i) { return b(l, i); });
    }

    PG_DEVICE static void mma(f32 (&acc)[c_size], const a_fragment& fa, const b_fragment& fb) {
        using words = typename Instruction::words;
        typename f32_vector<c_size>::type sum;
        __builtin_memcpy(&sum, acc, sizeof(sum));
        PG_UNROLL
        for (i32 i = 0; i < Chain; i++) {
            words wa, wb;
            __builtin_memcpy(&wa, fa.x + i * Instruction::held, sizeof(wa));
            __builtin_memcpy(&wb, fb.x + i * Instruction::held, sizeof(wb));
            sum = Instruction::issue(wa, wb, sum);
        }
        __builtin_memcpy(acc, &sum, sizeof(sum));
    }
};

// By the names the profiles use. These say the instruction; the atom's k is that of the chain.
template <class T>
struct by_element;
template <>
struct by_element<fp16> {
    using mfma_32x32x8 = mfma<f32_32x32x8_f16, 2>;
    using mfma_16x16x16 = mfma<f32_16x16x16_f16, 2>;
};
template <>
struct by_element<bf16> {
    using mfma_32x32x8 = mfma<f32_32x32x8_bf16, 2>;
    using mfma_16x16x16 = mfma<f32_16x16x16_bf16, 2>;
};
template <class T>
using mfma_32x32x8 = typename by_element<T>::mfma_32x32x8;  // k = 16
template <class T>
using mfma_16x16x16 = typename by_element<T>::mfma_16x16x16;  // k = 32
using mfma_32x32x2_f32 = mfma<f32_32x32x2_f32, 4>;            // k = 8
using mfma_16x16x4_f32 = mfma<f32_16x16x4_f32, 4>;            // k = 16

// Seconds of work for a compiler's interpreter, so only where asked: tests/compile does.
#if defined(PG_CHECK_MAPS)
static_assert(maps_are_sound<mfma<f32_32x32x8_f16, 1>>() && maps_are_sound<mfma_32x32x8<fp16>>());
static_assert(maps_are_sound<mfma<f32_16x16x16_f16, 1>>() && maps_are_sound<mfma_16x16x16<fp16>>());
static_assert(maps_are_sound<mfma<f32_32x32x8_bf16, 1>>() && maps_are_sound<mfma_32x32x8<bf16>>());
static_assert(maps_are_sound<mfma<f32_16x16x16_bf16, 1>>() && maps_are_sound<mfma_16x16x16<bf16>>());
static_assert(maps_are_sound<mfma<f32_32x32x2_f32, 1>>() && maps_are_sound<mfma_32x32x2_f32>());
static_assert(maps_are_sound<mfma<f32_16x16x4_f32, 1>>() && maps_are_sound<mfma_16x16x4_f32>());
#endif

#undef PG_GFX90A_INSTRUCTION

}  // namespace pg::arch
