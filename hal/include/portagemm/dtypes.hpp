// Element types in memory and their conversions to and from fp32, in which everything is computed.
#pragma once
#include <portagemm/core.hpp>

namespace pg {

struct fp16 {  // IEEE binary16
    u16 bits;
};
struct bf16 {  // upper half of a binary32
    u16 bits;
};
using fp32 = float;

PG_DEVICE f32 to_f32(f32 x) { return x; }
PG_DEVICE f32 to_f32(fp16 x) { return vendor::fp16_to_fp32(x.bits); }
PG_DEVICE f32 to_f32(bf16 x) { return vendor::bits_to_fp32(u32(x.bits) << 16); }

// Round to nearest even, NaN stays NaN, overflow becomes infinity: torch's cast.
template <class T>
PG_DEVICE T from_f32(f32 x) {
    if constexpr (same_type<T, fp16>) {
        return fp16{vendor::fp32_to_fp16(x)};
    } else if constexpr (same_type<T, bf16>) {
        return bf16{vendor::fp32_to_bf16(x)};
    } else {
        static_assert(same_type<T, f32>);
        return x;
    }
}

// Two 16-bit values in one register, the first in the low half.
template <class T>
PG_DEVICE u32 pack(f32 low, f32 high) {
    static_assert(sizeof(T) == 2);
    if constexpr (same_type<T, fp16>) {
        return vendor::pack_fp16(low, high);
    } else {
        return vendor::pack_bf16(low, high);
    }
}

}  // namespace pg
