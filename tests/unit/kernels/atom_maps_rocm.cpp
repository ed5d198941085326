// Prints the maps of every AMD atom and instruction as the headers have them, one element a line:
//   name operand lane index row col
// The host's vendor folder is enough: maps are constexpr, no instruction is needed.
#include <cstdio>

#include <portagemm/arch/gfx1100.hpp>
#include <portagemm/arch/gfx90a.hpp>
#include <portagemm/arch/gfx950.hpp>
#include <portagemm/atom/fma.hpp>  // checked by its own static_assert

using namespace pg;
using namespace pg::arch;

template <class Atom>
void print(const char* name) {
    std::printf("%s shape %d %d %d %d\n", name, Atom::m, Atom::n, Atom::k, Atom::lanes);
    for (i32 lane = 0; lane < Atom::lanes; lane++) {
        for (i32 i = 0; i < Atom::a_size; i++) {
            std::printf("%s a %d %d %d %d\n", name, lane, i, Atom::a(lane, i).row, Atom::a(lane, i).col);
        }
        for (i32 i = 0; i < Atom::b_size; i++) {
            std::printf("%s b %d %d %d %d\n", name, lane, i, Atom::b(lane, i).row, Atom::b(lane, i).col);
        }
        for (i32 i = 0; i < Atom::c_size; i++) {
            std::printf("%s c %d %d %d %d\n", name, lane, i, Atom::c(lane, i).row, Atom::c(lane, i).col);
        }
    }
}

int main() {
    print<mfma<gfx90a::f32_32x32x8_f16, 1>>("v_mfma_f32_32x32x8f16");
    print<mfma<gfx90a::f32_16x16x16_f16, 1>>("v_mfma_f32_16x16x16f16");
    print<mfma<gfx90a::f32_32x32x8_bf16, 1>>("v_mfma_f32_32x32x8bf16_1k");
    print<mfma<gfx90a::f32_16x16x16_bf16, 1>>("v_mfma_f32_16x16x16bf16_1k");
    print<mfma<gfx90a::f32_32x32x2_f32, 1>>("v_mfma_f32_32x32x2f32");
    print<mfma<gfx90a::f32_16x16x4_f32, 1>>("v_mfma_f32_16x16x4f32");
    print<mfma<gfx90a::i32_32x32x8_i8, 1>>("v_mfma_i32_32x32x8i8");
    print<mfma<gfx90a::i32_16x16x16_i8, 1>>("v_mfma_i32_16x16x16i8");
    print<gfx90a::mfma_32x32x8<fp16>>("gfx90a-mfma_32x32x8-fp16");
    print<gfx90a::mfma_16x16x16<fp16>>("gfx90a-mfma_16x16x16-fp16");
    print<gfx90a::mfma_32x32x8<bf16>>("gfx90a-mfma_32x32x8-bf16");
    print<gfx90a::mfma_16x16x16<bf16>>("gfx90a-mfma_16x16x16-bf16");
    print<gfx90a::mfma_32x32x8_flush<fp16>>("gfx90a-mfma_32x32x8_flush-fp16");
    print<gfx90a::mfma_16x16x16_flush<bf16>>("gfx90a-mfma_16x16x16_flush-bf16");
    print<gfx90a::mfma_32x32x2_f32>("gfx90a-mfma_32x32x2_f32-fp32");
    print<gfx90a::mfma_16x16x4_f32>("gfx90a-mfma_16x16x4_f32-fp32");
    print<gfx90a::mfma_32x32x8_i8>("gfx90a-mfma_32x32x8_i8-int8");
    print<gfx90a::mfma_16x16x16_i8>("gfx90a-mfma_16x16x16_i8-int8");

    print<mfma<gfx942::f32_32x32x8_f16, 1>>("v_mfma_f32_32x32x8_f16");
    print<mfma<gfx942::f32_16x16x16_f16, 1>>("v_mfma_f32_16x16x16_f16");
    print<mfma<gfx942::f32_32x32x8_bf16, 1>>("v_mfma_f32_32x32x8_bf16");
    print<mfma<gfx942::f32_16x16x16_bf16, 1>>("v_mfma_f32_16x16x16_bf16");
    print<mfma<gfx942::f32_32x32x2_f32, 1>>("v_mfma_f32_32x32x2_f32");
    print<mfma<gfx942::f32_16x16x4_f32, 1>>("v_mfma_f32_16x16x4_f32");
    print<mfma<gfx942::i32_32x32x16_i8, 1>>("v_mfma_i32_32x32x16_i8");
    print<mfma<gfx942::i32_16x16x32_i8, 1>>("v_mfma_i32_16x16x32_i8");
    print<gfx942::mfma_32x32x8<fp16>>("gfx942-mfma_32x32x8-fp16");
    print<gfx942::mfma_16x16x16<bf16>>("gfx942-mfma_16x16x16-bf16");
    print<gfx942::mfma_32x32x2_f32>("gfx942-mfma_32x32x2_f32-fp32");
    print<gfx942::mfma_16x16x4_f32>("gfx942-mfma_16x16x4_f32-fp32");
    print<gfx942::mfma_32x32x16_i8>("gfx942-mfma_32x32x16_i8-int8");
    print<gfx942::mfma_16x16x32_i8>("gfx942-mfma_16x16x32_i8-int8");

    print<gfx950::mfma_32x32x16<fp16>>("v_mfma_f32_32x32x16_f16");
    print<gfx950::mfma_16x16x32<fp16>>("v_mfma_f32_16x16x32_f16");
    print<gfx950::mfma_32x32x16<bf16>>("v_mfma_f32_32x32x16_bf16");
    print<gfx950::mfma_16x16x32<bf16>>("v_mfma_f32_16x16x32_bf16");

    print<gfx1100::wmma_16x16x16<fp16>>("v_wmma_f32_16x16x16_f16");
    print<gfx1100::wmma_16x16x16<bf16>>("v_wmma_f32_16x16x16_bf16");
    print<gfx1100::wmma_16x16x16_i8>("v_wmma_i32_16x16x16_iu8");
}
