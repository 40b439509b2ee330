// What every kernel file begins with: sums over a threadgroup, activations, and how numbers are read.
//
// Kernels are written in the strict subset: explicit address spaces and casts, nothing beyond C++14. Compiled without fast math.
#include <metal_stdlib>
using namespace metal;

// Makes a kernel of a template's instance, under a name that the host asks for.
#define KERNEL(NAME, ...) template [[host_name(NAME)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;
// One for each format of the activations: name_f32, name_f16, name_bf16.
#define FLOATS(F) \
KERNEL(#F "_f32", F<float>) \
KERNEL(#F "_f16", F<half>) \
KERNEL(#F "_bf16", F<bfloat>)

// Threads of a SIMD-group.
constant uint LANES = 32;

// The sum over the threadgroup, in every thread. `part` has room for one float a SIMD-group, at most 32.
METAL_FUNC float group_sum(float v, threadgroup float *part, uint lane, uint simd, uint simds) {
    v = simd_sum(v);
    threadgroup_barrier(mem_flags::mem_threadgroup); // an earlier call's parts have been read
    if (lane == 0) {
        part[simd] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < simds; i++) {
        total += part[i];
    }
    return total;
}

// The largest of the threadgroup, in every thread; NaN if there is one.
METAL_FUNC float group_max(float v, threadgroup float *part, uint lane, uint simd, uint simds) {
    bool broken = simd_any(isnan(v));
    v = broken ? NAN : simd_max(v);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) {
        part[simd] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float largest = part[0];
    for (uint i = 1; i < simds; i++) {
        largest = part[i] > largest || isnan(part[i]) ? part[i] : largest;
    }
    return largest;
}

// erf within 4 ulp of 1: an odd rational function on [-4, 4], beyond which it stays within an ulp of 1. Metal has none.
METAL_FUNC float erf_of(float v) {
    float x = clamp(v, -4.0f, 4.0f);
    float s = x * x;
    float p = -2.7261423e-10f;
    p = fma(p, s, 2.7706814e-8f);
    p = fma(p, s, -2.101024e-6f);
    p = fma(p, s, -5.6925064e-5f);
    p = fma(p, s, -7.3499063e-4f);
    p = fma(p, s, -2.9545998e-3f);
    p = fma(p, s, -1.6096033e-2f);
    float q = -1.4566072e-5f;
    q = fma(q, s, -2.1337406e-4f);
    q = fma(q, s, -1.682827e-3f);
    q = fma(q, s, -7.373329e-3f);
    q = fma(q, s, -1.4264739e-2f);
    return x * p / q;
}

METAL_FUNC float sigmoid_of(float x) {
    return 1.0f / (1.0f + precise::exp(-x));
}

// The activations, numbered as `Activation` is in Rust.
constant ushort ACT_NONE = 0;
constant ushort ACT_GELU = 1;
constant ushort ACT_GELU_TANH = 2;
constant ushort ACT_QUICK_GELU = 3;
constant ushort ACT_RELU = 4;
constant ushort ACT_SILU = 5;
constant ushort ACT_SIGMOID = 6;
constant ushort ACT_TANH = 7;

METAL_FUNC float activate(float x, ushort kind) {
    if (kind == ACT_GELU) {
        // Below -6 the answer is 0 to within 1e-8, but erf is an ulp short of -1, and x would multiply that.
        float h = 0.5f * max(x, -6.0f);
        return isnan(x) ? x : fma(h, erf_of(max(x, -6.0f) * M_SQRT1_2_F), h);
    }
    if (kind == ACT_GELU_TANH) {
        float h = 0.5f * max(x, -6.0f);
        float v = max(x, -6.0f);
        return isnan(x) ? x : fma(h, precise::tanh(0.7978846f * fma(v * v * v, 0.044715f, v)), h);
    }
    if (kind == ACT_QUICK_GELU) {
        return x * sigmoid_of(1.702f * x);
    }
    if (kind == ACT_RELU) {
        return x < 0.0f ? 0.0f : x;
    }
    if (kind == ACT_SILU) {
        return x * sigmoid_of(x);
    }
    if (kind == ACT_SIGMOID) {
        return sigmoid_of(x);
    }
    if (kind == ACT_TANH) {
        return precise::tanh(x);
    }
    return x;
}

// Four neighbours of a row of n, from i on; `beyond` stands for those that it has not. Written element by element, so that a row may
// begin anywhere: the compiler makes one access of the four.
template <typename T>
METAL_FUNC float4 four_at(device const T *x, uint i, uint n, float beyond) {
    float4 v = float4(beyond);
    uint left = i < n ? n - i : 0;
    if (left >= 4) {
        return float4(float(x[i]), float(x[i + 1]), float(x[i + 2]), float(x[i + 3]));
    }
    if (left > 0) {
        v[0] = float(x[i]);
    }
    if (left > 1) {
        v[1] = float(x[i + 1]);
    }
    if (left > 2) {
        v[2] = float(x[i + 2]);
    }
    return v;
}

// Writes those of four neighbours that a row of n has, each rounded to T.
template <typename T>
METAL_FUNC void put_four(device T *y, uint i, uint n, float4 v) {
    uint left = i < n ? n - i : 0;
    if (left >= 4) {
        y[i] = T(v[0]);
        y[i + 1] = T(v[1]);
        y[i + 2] = T(v[2]);
        y[i + 3] = T(v[3]);
        return;
    }
    if (left > 0) {
        y[i] = T(v[0]);
    }
    if (left > 1) {
        y[i + 1] = T(v[1]);
    }
    if (left > 2) {
        y[i + 2] = T(v[2]);
    }
}

// Each rounded to T.
template <typename T>
METAL_FUNC float4 rounded(float4 v) {
    return float4(float(T(v[0])), float(T(v[1])), float(T(v[2])), float(T(v[3])));
}
