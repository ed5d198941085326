// Matrix atoms of gfx90a (MI200). Maps and instructions: AMD "CDNA2" Instruction Set Architecture, chapter 7, and
// AMD's matrix instruction calculator (--architecture cdna2 --instruction ... --register-layout).
//
// Each is one block computed by a wave of 64. With g = lane / M, a lane's group, and e = K * M / 64 elements of K held
// by a lane for one instruction:
//   A  element i: row lane % M, k = g * e + i        B  element i: column lane % N, k = g * e + i
//   C  register r: column lane % N, and row 8 * (r / 4) + 4 * g + r % 4 of 32x32, row 4 * g + r of 16x16
//
// NOTE: MI200 takes subnormal fp16 and bf16 operands of these instructions for zero (PyTorch, "Numerical accuracy", on
// AMD Instinct MI200 devices); the fp32 instructions keep them. The atom below sees to it that no value is lost.
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
typedef u16 ushort2 __attribute__((ext_vector_type(2)));

// The lesser of least and x - 1 in each half (v_pk_sub_u16, v_pk_min_u16).
PG_DEVICE u32 lesser_halves(u32 least, u32 x) {
    const ushort2 one = {1, 1};
    return __builtin_bit_cast(u32, __builtin_elementwise_min(__builtin_bit_cast(ushort2, least),
                                                             (ushort2)(__builtin_bit_cast(ushort2, x) - one)));
}
PG_DEVICE bool any_lane(bool x) { return __builtin_amdgcn_ballot_w64(x) != 0; }
PG_DEVICE i32 hide(i32 x) { return vendor::opaque_vector(x); }
#else
// Only declared: the maps are checked where there are no such instructions.
u32 lesser_halves(u32 least, u32 x);
bool any_lane(bool x);
i32 hide(i32 x);
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
//
// Where a fragment holds a subnormal, which the 16-bit instructions would take for zero, the same elements go to Exact,
// the fp32 instruction of the same shape, one by one: it keeps subnormals, its products of 16-bit values are exact, and
// element i of group g stands for the same k as before. All lanes agree on the way, which costs a few packed operations.
template <class Instruction, int Chain, class Exact = Instruction>
struct mfma {
    using element = typename Instruction::element;
    static constexpr i32 lanes = 64;
    static constexpr i32 m = Instruction::m, n = Instruction::n, k = Instruction::k * Chain;
    static constexpr i32 a_size = Instruction::held * Chain, b_size = a_size, c_size = Instruction::c_size;
    static constexpr i32 a_run = a_size, b_run = b_size, c_run = 1;
    static constexpr bool flushes = sizeof(element) == 2;
    struct alignas(16) fragment {
        element x[a_size];
        bool subnormal;  // some lane of the wave holds one
    };
    using a_fragment = fragment;
    using b_fragment = fragment;

    PG_HD static constexpr coord a(i32 lane, i32 i) { return {lane % m, lane / m * a_size + i}; }
    PG_HD static constexpr coord b(i32 lane, i32 i) { return {lane % n, lane / n * b_size + i}; }
    PG_HD static constexpr coord c(i32 lane, i32 r) {
        constexpr i32 rows = 4 * Instruction::groups;  // rows of the block that four registers cover
        return {r / 4 * rows + 4 * (lane / n) + r % 4, lane % n};
    }

    template <class Stage>
    PG_DEVICE static void read_a(a_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        read_by_map<Stage, a_run>(f.x, stage, mn, kk, lane, [](i32 l, i32 i) { return a(l, i); });
        f.subnormal = flushes && any_subnormal(f);
    }
    template <class Stage>
    PG_DEVICE static void read_b(b_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        read_by_map<Stage, b_run>(f.x, stage, mn, kk, lane, [](i32 l, i32 i) { return b(l, i); });
        f.subnormal = flushes && any_subnormal(f);
    }

    PG_DEVICE static void mma(f32 (&acc)[c_size], const a_fragment& fa, const b_fragment& fb) {
        typename f32_vector<c_size>::type sum;
        __builtin_memcpy(&sum, acc, sizeof(sum));
        if (flushes && (fa.subnormal || fb.subnormal)) {
            static_assert(Exact::m == m && Exact::held == 1, "the exact instruction has the same shape");
            // NOTE: opaque copies, or the conversions would be computed before the branch, where all pay for them.
            const fragment wide_a = opaque(fa), wide_b = opaque(fb);
            PG_UNROLL
            for (i32 i = 0; i < a_size; i++) {
                sum = Exact::issue(__builtin_bit_cast(u32, to_f32(wide_a.x[i])),
                                   __builtin_bit_cast(u32, to_f32(wide_b.x[i])), sum);
            }
        } else {
            using words = typename Instruction::words;
            PG_UNROLL
            for (i32 i = 0; i < Chain; i++) {
                words wa, wb;
                __builtin_memcpy(&wa, fa.x + i * Instruction::held, sizeof(wa));
                __builtin_memcpy(&wb, fb.x + i * Instruction::held, sizeof(wb));
                sum = Instruction::issue(wa, wb, sum);
            }
        }
        __builtin_memcpy(acc, &sum, sizeof(sum));
    }

  private:
    static constexpr i32 words_held = a_size * i32(sizeof(element)) / 4;

    PG_DEVICE static fragment opaque(const fragment& f) {
        fragment copy = f;
        PG_UNROLL
        for (i32 w = 0; w < words_held; w++) {
            i32 word;
            __builtin_memcpy(&word, reinterpret_cast<const u8*>(f.x) + 4 * w, 4);
            word = hide(word);
            __builtin_memcpy(reinterpret_cast<u8*>(copy.x) + 4 * w, &word, 4);
        }
        return copy;
    }

    // A magnitude x is subnormal if 1 <= x <= largest, that is if x - 1 < largest without sign: two halves at a time.
    PG_DEVICE static bool any_subnormal(const fragment& f) {
        constexpr u32 largest = same_type<element, fp16> ? 0x3ff : 0x7f;
        u32 least = 0xffffffff;
        PG_UNROLL
        for (i32 w = 0; w < words_held; w++) {
            u32 word;
            __builtin_memcpy(&word, reinterpret_cast<const u8*>(f.x) + 4 * w, 4);
            least = lesser_halves(least, word & 0x7fff7fff);
        }
        return any_lane((least & 0xffff) < largest || least >> 16 < largest);
    }
};

// By the names the profiles use. These say the instruction; the atom's k is that of the chain.
template <class T>
struct by_element;
template <>
struct by_element<fp16> {
    using mfma_32x32x8 = mfma<f32_32x32x8_f16, 2, f32_32x32x2_f32>;
    using mfma_16x16x16 = mfma<f32_16x16x16_f16, 2, f32_16x16x4_f32>;
};
template <>
struct by_element<bf16> {
    using mfma_32x32x8 = mfma<f32_32x32x8_bf16, 2, f32_32x32x2_f32>;
    using mfma_16x16x16 = mfma<f32_16x16x16_bf16, 2, f32_16x16x4_f32>;
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
