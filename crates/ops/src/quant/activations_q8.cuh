// Rows of activations in 8 bits with a scale per 32, and the epilogue of products with them.
#pragma once
#include "launch/cuda/element.cuh"

// Rows of k elements: all codes, then all scales, then the sums of every sixteen elements, times
// their scale. They follow each other in one buffer; k is a multiple of 32.
struct Rounded {
    const int8_t *codes;
    const float *scales, *sums;
    uint k;

    __device__ __forceinline__ Rounded(const uint8_t *at, uint rows, uint k)
        : codes(reinterpret_cast<const int8_t *>(at)), scales(reinterpret_cast<const float *>(at + size_t(rows) * k)),
          sums(scales + size_t(rows) * (k / 32)), k(k) {}

    // Group `i` of sixteen codes.
    __device__ __forceinline__ uint4 sixteen_of(uint row, uint i) const {
        return __ldg(reinterpret_cast<const uint4 *>(codes + size_t(row) * k) + i);
    }
    __device__ __forceinline__ float scale_of(uint row, uint i) const { return __ldg(scales + size_t(row) * (k / 32) + i / 2); }
    __device__ __forceinline__ float sum_of(uint row, uint i) const { return __ldg(sums + size_t(row) * (k / 16) + i); }
};

struct Sizes {
    uint rows, n, k, x_step, residual_step, width, first, activation;
    // Bytes of a row of W, and the dtype of bias, residual and y: 0 for f32, 1 for f16, 2 for bf16.
    uint bytes, dtype;
};

// Stores act(sum + b) + residual. It runs once per row of W, so the dtype is a run-time argument
// and one kernel serves all dtypes; and it is not inlined, so that the activations are compiled
// once.
static __device__ __noinline__ void finish(
    float sum, uint row, uint column, const void *bias, const void *residual, void *y, const Sizes &s) {
    const uint at = s.first + column;
    float v = activate(sum + (bias ? element(bias, at, s.dtype) : 0.0f), s.activation);
    if (residual) v += element(residual, size_t(row) * s.residual_step + at, s.dtype);
    set_element(y, size_t(row) * s.width + at, v, s.dtype);
}

#define QUANT_SIZES \
    uint rows, uint n, uint k, uint x_step, uint residual_step, uint width, uint first, uint activation, uint bytes, uint dtype
#define QUANT_ARGS Sizes{rows, n, k, x_step, residual_step, width, first, activation, bytes, dtype}
