// What happens to an accumulator before it is stored: D = act(alpha * acc + beta * C + bias), all in fp32, rounded once.
#pragma once
#include <portagemm/accumulator.hpp>
#include <portagemm/dtypes.hpp>
#include <portagemm/params.hpp>
#include <portagemm/scheduler.hpp>

namespace pg {

enum class activation { none, relu, gelu, gelu_tanh, silu };

// Built on exp2 and division alone: some targets link no device library.
namespace math {

constexpr f32 log2_e = 1.44269504f;

PG_DEVICE f32 exp(f32 x) { return vendor::exp2(x * log2_e); }
PG_DEVICE f32 sigmoid(f32 x) { return 1.0f / (1.0f + exp(-x)); }
PG_DEVICE f32 tanh(f32 x) { return 1.0f - 2.0f / (1.0f + exp(2.0f * x)); }

// Abramowitz and Stegun 7.1.26: absolute error below 1.5e-7.
PG_DEVICE f32 erf(f32 x) {
    const f32 a = x < 0.0f ? -x : x;
    const f32 t = 1.0f / (1.0f + 0.3275911f * a);
    const f32 p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    const f32 y = 1.0f - p * exp(-a * a);
    return x < 0.0f ? -y : y;
}

}  // namespace math

template <activation Act>
PG_DEVICE f32 activate(f32 x) {
    if constexpr (Act == activation::relu) {
        return x < 0.0f ? 0.0f : x;  // NaN stays NaN, as in torch
    } else if constexpr (Act == activation::gelu) {
        return 0.5f * x * (1.0f + math::erf(x * 0.70710678f));
    } else if constexpr (Act == activation::gelu_tanh) {
        return 0.5f * x * (1.0f + math::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    } else if constexpr (Act == activation::silu) {
        return x * math::sigmoid(x);
    } else {
        return x;
    }
}

// What is compiled in: the activation, and whether C and a bias are read at all (beta == 0 reads no C).
template <activation Act, bool HasC, bool HasBias, class ElementC, class ElementBias>
struct epilogue {
    static constexpr bool reads = HasC || HasBias;  // whether apply() reads memory

    // Matrices of the work's batch; C and the bias may repeat by stride 0 in any direction.
    const gemm_params& p;
    const ElementC* c;
    const ElementBias* bias;

    PG_DEVICE epilogue(const gemm_params& params, const work& w) : p(params), c(nullptr), bias(nullptr) {
        if constexpr (HasC) c = static_cast<const ElementC*>(p.c.ptr) + batch_offset(p.c, p, w.batch);
        if constexpr (HasBias) bias = static_cast<const ElementBias*>(p.bias.ptr) + batch_offset(p.bias, p, w.batch);
    }

    // (m, n) must lie inside the output: C and the bias are read there.
    PG_DEVICE f32 apply(f32 acc, i32 m, i32 n) const {
        f32 x = p.alpha * acc;
        if constexpr (HasC) x = vendor::fma(p.beta, to_f32(c[i64(m) * p.c.row + i64(n) * p.c.col]), x);
        if constexpr (HasBias) x += to_f32(bias[i64(m) * p.bias.row + i64(n) * p.bias.col]);
        return activate<Act>(x);
    }
};

}  // namespace pg
