// Matrix atoms of CDNA (MFMA), whatever the generation. Maps: AMD's instruction set architecture guides, chapter "Matrix
// Arithmetic Instructions", and AMD's matrix instruction calculator (--instruction ... --register-layout).
//
// An instruction is one block computed by a wave of 64. With g = lane / M, a lane's group, and e = K * M / 64 elements of
// K held by a lane for one instruction:
//   A  element i: row lane % M, k = g * e + i        B  element i: column lane % N, k = g * e + i
//   C  register r: column lane % N, and row 8 * (r / 4) + 4 * g + r % 4 of 32x32, row 4 * g + r of 16x16
#pragma once
#include <portagemm/concepts.hpp>
#include <portagemm/dtypes.hpp>
#include <portagemm/layout.hpp>

namespace pg::arch {

using int8 = signed char;

template <class T, int N>
struct vector_of {
    typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T>
struct vector_of<T, 1> {
    using type = T;
};

// Operands as the instructions take them: 16-bit ones by 4 or 8, bytes packed into integers.
template <int N>
using halves = typename vector_of<_Float16, N>::type;
template <int N>
using shorts = typename vector_of<short, N>::type;

// What a lane holds of an operand, in registers: chunks of 16 bytes, which are read as wholes. Elements are parts of words.
template <class Element, int Size>
struct lane_fragment {
    using chunk = typename vector_of<u32, 4>::type;
    static constexpr i32 chunk_size = 16 / i32(sizeof(Element)), chunks = Size / chunk_size;
    static_assert(chunks * chunk_size == Size);
    chunk part[chunks];

    // Map gives a run of Size elements, as the atoms' maps do.
    template <class Stage, class Map>
    PG_DEVICE void read(const u8* stage, i32 mn, i32 k, i32 lane, Map map) {
        static_assert(Stage::order == major::k && same_type<typename Stage::element, Element>);
        static_assert(Stage::run == chunk_size);
        PG_UNROLL
        for (i32 i = 0; i < chunks; i++) {
            const coord c = map(lane, i * chunk_size);
            part[i] = *reinterpret_cast<const chunk*>(stage + Stage::offset(mn + c.row, k + c.col));
        }
    }
    // Words of 32 bits from one on.
    template <class Words>
    PG_DEVICE Words words(i32 first) const {
        if constexpr (sizeof(Words) == 4) {
            return part[first / 4][first % 4];
        } else if constexpr (sizeof(Words) <= 16) {
            Words w;
            PG_UNROLL
            for (i32 i = 0; i < i32(sizeof(Words)) / 4; i++) w[i] = part[first / 4][first % 4 + i];
            return w;
        } else {
            return __builtin_bit_cast(Words, part);
        }
    }
};

// The maps are checked wherever a host compiler is; the instructions exist only where their target is compiled.
// `available` is 0 or 1: elsewhere, using the instruction is an error that names it and its archs.
#define PG_INSTRUCTION(available, ...) PG_INSTRUCTION_(available, __VA_ARGS__)
#define PG_INSTRUCTION_(available, ...) PG_INSTRUCTION_##available(__VA_ARGS__)
#define PG_INSTRUCTION_1(archs, mnemonic, expression) return expression
#define PG_INSTRUCTION_0(archs, mnemonic, expression)                                                \
    static_assert(unsupported<C>, mnemonic " is an instruction of " archs "; this target lacks it"); \
    return c

// Instructions as data: shape, element, accumulator, and operands as the registers hold them (u32 words).
template <int M, int K, class Element, class Sum = f32>
struct mfma_shape {
    using element = Element;
    using sum = Sum;
    static constexpr i32 m = M, n = M, k = K;
    static constexpr i32 groups = 64 / M, held = K / groups, c_size = M * M / 64;
    using words = typename vector_of<u32, held * i32(sizeof(Element)) / 4>::type;
};

// An atom chains Chain instructions, so that a lane reads 16 bytes of K at once: ds_read_b128 is free of bank conflicts
// in the swizzled stage, while narrower reads meet in pairs. Element i goes to instruction i / held, and the k it
// stands for becomes g * held * Chain + i: any assignment is right that A and B share. Chain 1 is the manual's map.
template <class Instruction, int Chain>
struct mfma {
    using element = typename Instruction::element;
    using sum = typename Instruction::sum;
    static constexpr i32 lanes = 64, chain = Chain;
    static constexpr i32 m = Instruction::m, n = Instruction::n, k = Instruction::k * Chain;
    static constexpr i32 a_size = Instruction::held * Chain, b_size = a_size, c_size = Instruction::c_size;
    static constexpr i32 a_run = a_size, b_run = b_size, c_run = 1;
    using fragment = lane_fragment<element, a_size>;
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
        f.template read<Stage>(stage, mn, kk, lane, [](i32 l, i32 i) { return a(l, i); });
    }
    template <class Stage>
    PG_DEVICE static void read_b(b_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        f.template read<Stage>(stage, mn, kk, lane, [](i32 l, i32 i) { return b(l, i); });
    }

    PG_DEVICE static void mma(sum (&acc)[c_size], const fragment& fa, const fragment& fb) {
        typename vector_of<sum, c_size>::type total;
        __builtin_memcpy(&total, acc, sizeof(total));
        PG_UNROLL
        for (i32 i = 0; i < Chain; i++) {
            using words = typename Instruction::words;
            constexpr i32 step = i32(sizeof(words)) / 4;
            total = Instruction::issue(fa.template words<words>(i * step), fb.template words<words>(i * step), total);
        }
        __builtin_memcpy(acc, &total, sizeof(total));
    }
};

}  // namespace pg::arch
