// y = (s - mean(s)) / sqrt(var(s) + eps) * w + b,  s = x + residual. One threadgroup a row, everything in f32, one rounding.
//
// Written in the strict subset: explicit address spaces and casts, nothing beyond C++14.
#include <metal_stdlib>
using namespace metal;

// What the row has, as bits of `flags`. An absent buffer is bound to x and never read.
constant uint HAS_RESIDUAL = 1;
constant uint HAS_BIAS = 2;

// The sum over the threadgroup, in every thread. `part` has room for one float a SIMD group, at most 32.
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

template <typename T>
METAL_FUNC float sum_at(device const T *x, device const T *residual, uint i, uint flags) {
    float v = float(x[i]);
    if ((flags & HAS_RESIDUAL) != 0) {
        v += float(residual[i]);
    }
    return v;
}

template <typename T>
METAL_FUNC void layer_norm_row(device const T *x, device const T *residual, device const T *w, device const T *bias,
    device T *y, uint n, float eps, uint flags, threadgroup float *part, uint tid, uint threads, uint lane, uint simd,
    uint simds) {
    float sum = 0.0f;
    for (uint i = tid; i < n; i += threads) {
        sum += sum_at<T>(x, residual, i, flags);
    }
    float mean = group_sum(sum, part, lane, simd, simds) / float(n);

    float squares = 0.0f;
    for (uint i = tid; i < n; i += threads) {
        float d = sum_at<T>(x, residual, i, flags) - mean;
        squares += d * d;
    }
    float scale = 1.0f / sqrt(group_sum(squares, part, lane, simd, simds) / float(n) + eps);

    for (uint i = tid; i < n; i += threads) {
        float v = (sum_at<T>(x, residual, i, flags) - mean) * scale * float(w[i]);
        if ((flags & HAS_BIAS) != 0) {
            v += float(bias[i]);
        }
        y[i] = T(v);
    }
}

#define LAYER_NORM(NAME, T) \
kernel void NAME(device const T *x [[buffer(0)]], device const T *residual [[buffer(1)]], \
    device const T *w [[buffer(2)]], device const T *bias [[buffer(3)]], device T *y [[buffer(4)]], \
    constant uint &n [[buffer(5)]], constant float &eps [[buffer(6)]], constant uint &flags [[buffer(7)]], \
    uint row [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]], \
    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]], \
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) { \
    threadgroup float part[32]; \
    ulong first = ulong(row) * ulong(n); \
    layer_norm_row<T>(x + first, residual + first, w, bias, y + first, n, eps, flags, part, tid, threads, lane, simd, simds); \
}
LAYER_NORM(layer_norm_f32, float)
LAYER_NORM(layer_norm_f16, half)
LAYER_NORM(layer_norm_bf16, bfloat)
