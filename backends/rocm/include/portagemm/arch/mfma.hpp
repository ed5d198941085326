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
#include <portagemm/operand_path.hpp>

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
    static constexpr i32 lanes = 64;
    static constexpr i32 m = Instruction::m, n = Instruction::n, k = Instruction::k * Chain;
    static constexpr i32 a_size = Instruction::held * Chain, b_size = a_size, c_size = Instruction::c_size;
    static constexpr i32 a_run = a_size, b_run = b_size, c_run = 1;
    struct alignas(16) fragment {
        element x[a_size];
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
    }
    template <class Stage>
    PG_DEVICE static void read_b(b_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        read_by_map<Stage, b_run>(f.x, stage, mn, kk, lane, [](i32 l, i32 i) { return b(l, i); });
    }

    PG_DEVICE static void mma(sum (&acc)[c_size], const fragment& fa, const fragment& fb) {
        typename vector_of<sum, c_size>::type total;
        __builtin_memcpy(&total, acc, sizeof(total));
        PG_UNROLL
        for (i32 i = 0; i < Chain; i++) {
            typename Instruction::words wa, wb;
            __builtin_memcpy(&wa, fa.x + i * Instruction::held, sizeof(wa));
            __builtin_memcpy(&wb, fb.x + i * Instruction::held, sizeof(wb));
            total = Instruction::issue(wa, wb, total);
        }
        __builtin_memcpy(acc, &total, sizeof(total));
    }
};

}  // namespace pg::arch
