// Matrix atoms of gfx90a (MI200): AMD "CDNA2" Instruction Set Architecture, chapter 7 (--architecture cdna2 in AMD's
// matrix instruction calculator).
//
// NOTE: MI200 takes subnormal fp16 and bf16 operands of these instructions for zero (PyTorch, "Numerical accuracy", on
// AMD Instinct MI200 devices); the fp32 instructions keep them. The atoms of those names lose no value; those whose names
// end in _flush are the bare instructions.
#pragma once
#include <portagemm/arch/mfma.hpp>

#if defined(__gfx90a__)
#define PG_HAS_GFX90A 1
#else
#define PG_HAS_GFX90A 0
#endif
#define PG_GFX90A(mnemonic, expression) PG_INSTRUCTION(PG_HAS_GFX90A, "gfx90a", mnemonic, expression)

namespace pg::arch::gfx90a {

struct f32_32x32x8_f16 : mfma_shape<32, 8, fp16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A("v_mfma_f32_32x32x8f16",
                  __builtin_amdgcn_mfma_f32_32x32x8f16((halves<4>)a, (halves<4>)b, c, 0, 0, 0));
    }
};
struct f32_16x16x16_f16 : mfma_shape<16, 16, fp16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A("v_mfma_f32_16x16x16f16",
                  __builtin_amdgcn_mfma_f32_16x16x16f16((halves<4>)a, (halves<4>)b, c, 0, 0, 0));
    }
};
struct f32_32x32x8_bf16 : mfma_shape<32, 8, bf16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A("v_mfma_f32_32x32x8bf16_1k",
                  __builtin_amdgcn_mfma_f32_32x32x8bf16_1k((shorts<4>)a, (shorts<4>)b, c, 0, 0, 0));
    }
};
struct f32_16x16x16_bf16 : mfma_shape<16, 16, bf16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A("v_mfma_f32_16x16x16bf16_1k",
                  __builtin_amdgcn_mfma_f32_16x16x16bf16_1k((shorts<4>)a, (shorts<4>)b, c, 0, 0, 0));
    }
};
struct f32_32x32x2_f32 : mfma_shape<32, 2, f32> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A("v_mfma_f32_32x32x2f32",
                  __builtin_amdgcn_mfma_f32_32x32x2f32(vendor::bits_to_fp32(a), vendor::bits_to_fp32(b), c, 0, 0, 0));
    }
};
struct f32_16x16x4_f32 : mfma_shape<16, 4, f32> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A("v_mfma_f32_16x16x4f32",
                  __builtin_amdgcn_mfma_f32_16x16x4f32(vendor::bits_to_fp32(a), vendor::bits_to_fp32(b), c, 0, 0, 0));
    }
};
struct i32_32x32x8_i8 : mfma_shape<32, 8, int8, i32> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A("v_mfma_i32_32x32x8i8", __builtin_amdgcn_mfma_i32_32x32x8i8(i32(a), i32(b), c, 0, 0, 0));
    }
};
struct i32_16x16x16_i8 : mfma_shape<16, 16, int8, i32> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX90A("v_mfma_i32_16x16x16i8", __builtin_amdgcn_mfma_i32_16x16x16i8(i32(a), i32(b), c, 0, 0, 0));
    }
};

// --- subnormals -----------------------------------------------------------------------------------------

#if defined(__gfx90a__)
typedef u16 ushort2 __attribute__((ext_vector_type(2)));

// The lesser of least and 2x - 1 in each half (v_pk_mad_u16, v_pk_min_u16). Doubling drops the sign; what is left is
// least for subnormals, and zero wraps round to the greatest: x is subnormal if 2x - 1 < 2 * largest.
PG_DEVICE u32 lesser_halves(u32 least, u32 x) {
    const ushort2 y = __builtin_bit_cast(ushort2, vendor::doubled_less_one(x));
    return __builtin_bit_cast(u32, __builtin_elementwise_min(__builtin_bit_cast(ushort2, least), y));
}
PG_DEVICE bool any_lane(bool x) { return __builtin_amdgcn_ballot_w64(x) != 0; }
PG_DEVICE i32 hide(i32 x) { return vendor::opaque_vector(x); }
#else
// Only declared: the maps are checked where there are no such instructions.
u32 lesser_halves(u32 least, u32 x);
bool any_lane(bool x);
i32 hide(i32 x);
#endif

// Whether a word of two 16-bit values among those gathered in `least` (see lesser_halves) is subnormal.
template <class Element>
PG_DEVICE bool found_subnormal(u32 least) {
    constexpr u16 largest = same_type<Element, fp16> ? 0x3ff : 0x7f;
    return min(u16(least), u16(least >> 16)) < 2 * largest;
}

// Where a fragment holds a subnormal, which the 16-bit instructions would take for zero, the same elements go to Exact,
// the fp32 instruction of the same shape, one by one: it keeps subnormals, its products of 16-bit values are exact, and
// element i of group g stands for the same k as before. All lanes agree on the way.
template <class Instruction, int Chain, class Exact>
struct exact_mfma : mfma<Instruction, Chain> {
    using base = mfma<Instruction, Chain>;
    using typename base::element;
    using fragment = typename base::fragment;
    static constexpr i32 a_size = base::a_size, c_size = base::c_size;
    static_assert(Exact::m == base::m && Exact::held == 1, "the exact instruction has the same shape");

    // Schedules may look at the operands on their way into the LDS, word by word and each once, and then leave out what
    // mma does for suspects.
    static constexpr bool watches = true;
    static constexpr u32 nothing_seen = 0xffffffff;
    PG_DEVICE static u32 seen(u32 least, u32 word) { return lesser_halves(least, word); }
    PG_DEVICE static bool any_suspect(u32 least) { return any_lane(found_subnormal<element>(least)); }

    PG_DEVICE static bool any_subnormal(const fragment& f) {
        u32 least = nothing_seen;
        PG_UNROLL
        for (i32 w = 0; w < words_held; w++) least = seen(least, f.template words<u32>(w));
        return any_suspect(least);
    }

    // Right for all operands.
    PG_DEVICE static void mma(f32 (&acc)[c_size], const fragment& fa, const fragment& fb) {
        mma(acc, fa, fb, any_subnormal(fa) || any_subnormal(fb));
    }
    // The same, where the fragments were looked at before.
    PG_DEVICE static void mma(f32 (&acc)[c_size], const fragment& fa, const fragment& fb, bool subnormal) {
        if (!subnormal) return base::mma(acc, fa, fb);
        typename vector_of<f32, c_size>::type sum;
        __builtin_memcpy(&sum, acc, sizeof(sum));
        PG_UNROLL
        for (i32 w = 0; w < words_held; w++) {
            // NOTE: opaque, or the conversions would be computed before the branch, where all pay for them.
            const u32 wa = u32(hide(i32(fa.template words<u32>(w)))), wb = u32(hide(i32(fb.template words<u32>(w))));
            sum = Exact::issue(vendor::fp32_to_bits(half<0>(wa)), vendor::fp32_to_bits(half<0>(wb)), sum);
            sum = Exact::issue(vendor::fp32_to_bits(half<1>(wa)), vendor::fp32_to_bits(half<1>(wb)), sum);
        }
        __builtin_memcpy(acc, &sum, sizeof(sum));
    }

  private:
    static constexpr i32 words_held = a_size * i32(sizeof(element)) / 4;

    template <int Which>
    PG_DEVICE static f32 half(u32 word) {
        return to_f32(__builtin_bit_cast(element, u16(word >> 16 * Which)));
    }
};

// --- by the names the profiles use: these say the instruction; the atom's k is that of the chain ----------

template <class T>
struct by_element;
template <>
struct by_element<fp16> {
    using mfma_32x32x8 = f32_32x32x8_f16;
    using mfma_16x16x16 = f32_16x16x16_f16;
};
template <>
struct by_element<bf16> {
    using mfma_32x32x8 = f32_32x32x8_bf16;
    using mfma_16x16x16 = f32_16x16x16_bf16;
};
template <class T>
using mfma_32x32x8 = exact_mfma<typename by_element<T>::mfma_32x32x8, 2, f32_32x32x2_f32>;  // k = 16
template <class T>
using mfma_16x16x16 = exact_mfma<typename by_element<T>::mfma_16x16x16, 2, f32_16x16x4_f32>;  // k = 32
template <class T>
using mfma_32x32x8_flush = mfma<typename by_element<T>::mfma_32x32x8, 2>;  // k = 16
template <class T>
using mfma_16x16x16_flush = mfma<typename by_element<T>::mfma_16x16x16, 2>;  // k = 32
using mfma_32x32x2_f32 = mfma<f32_32x32x2_f32, 4>;                           // k = 8
using mfma_16x16x4_f32 = mfma<f32_16x16x4_f32, 4>;                           // k = 16
using mfma_32x32x8_i8 = mfma<i32_32x32x8_i8, 4>;                             // k = 32
using mfma_16x16x16_i8 = mfma<i32_16x16x16_i8, 4>;                           // k = 64

// Seconds of work for a compiler's interpreter, so only where asked: the tests of the maps do.
#if defined(PG_CHECK_MAPS)
static_assert(maps_are_sound<mfma<f32_32x32x8_f16, 1>>() && maps_are_sound<mfma_32x32x8<fp16>>());
static_assert(maps_are_sound<mfma<f32_16x16x16_f16, 1>>() && maps_are_sound<mfma_16x16x16<fp16>>());
static_assert(maps_are_sound<mfma<f32_32x32x8_bf16, 1>>() && maps_are_sound<mfma_32x32x8<bf16>>());
static_assert(maps_are_sound<mfma<f32_16x16x16_bf16, 1>>() && maps_are_sound<mfma_16x16x16<bf16>>());
static_assert(maps_are_sound<mfma<f32_32x32x2_f32, 1>>() && maps_are_sound<mfma_32x32x2_f32>());
static_assert(maps_are_sound<mfma<f32_16x16x4_f32, 1>>() && maps_are_sound<mfma_16x16x4_f32>());
static_assert(maps_are_sound<mfma<i32_32x32x8_i8, 1>>() && maps_are_sound<mfma_32x32x8_i8>());
static_assert(maps_are_sound<mfma<i32_16x16x16_i8, 1>>() && maps_are_sound<mfma_16x16x16_i8>());
#endif

}  // namespace pg::arch::gfx90a
