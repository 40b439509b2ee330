// Rows of activations in 8 bits, a scale for every 32 of them, and how products with them end.
#pragma once
#include "launch/cuda/element.cuh"

// Rows of k elements: all codes, then all scales, then the sums of every sixteen elements, times their scale. They lie behind each other
// in one buffer; k is a multiple of 32.
struct Rounded {
    const int8_t *codes;
    const float *scales, *sums;
    uint k;

    __device__ __forceinline__ Rounded(const uint8_t *at, uint rows, uint k)
        : codes(reinterpret_cast<const int8_t *>(at)), scales(reinterpret_cast<const float *>(at + size_t(rows) * k)),
          sums(scales + size_t(rows) * (k / 32)), k(k) {}

    // The sixteens that elements are counted in.
    __device__ __forceinline__ uint4 sixteen_of(uint row, uint i) const {
        return __ldg(reinterpret_cast<const uint4 *>(codes + size_t(row) * k) + i);
    }
    __device__ __forceinline__ float scale_of(uint row, uint i) const { return __ldg(scales + size_t(row) * (k / 32) + i / 2); }
    __device__ __forceinline__ float sum_of(uint row, uint i) const { return __ldg(sums + size_t(row) * (k / 16) + i); }
};

struct Sizes {
    uint rows, n, k, x_step, residual_step, width, first, activation;
    // Of a row of W, and the format of bias, residual and y: 0 for f32, 1 for f16, 2 for bf16.
    uint bytes, dtype;
};

// act(sum + b) + residual where it belongs. Once for a whole row of W, so that the format is asked for here, and kernels are made for
// all at once; and a function of its own, so that the activations are compiled once.
static __device__ __noinline__ void finish(
    float sum, uint row, uint column, const void *bias, const void *residual, void *y, const Sizes &s) {
    const uint at = s.first + column;
    float v = activate(sum + (bias ? element(bias, at, s.dtype) : 0.0f), s.activation);
    if (residual) v += element(residual, size_t(row) * s.residual_step + at, s.dtype);
    set_element(y, size_t(row) * s.width + at, v, s.dtype);
}

#define QUANT_SIZES \
    uint rows, uint n, uint k, uint x_step, uint residual_step, uint width, uint first, uint activation, uint bytes, uint dtype
#define QUANT_GIVEN Sizes{rows, n, k, x_step, residual_step, width, first, activation, bytes, dtype}
