// Numbers whose format is a run-time argument: 0 for f32, 1 for f16, 2 for bf16. For kernels that
// spend their time elsewhere, so that they are compiled once for all formats.
#pragma once
#include "launch/cuda/prelude.cuh"

__device__ __forceinline__ float element(const void *x, size_t i, uint dtype) {
    switch (dtype) {
        case 0: return static_cast<const float *>(x)[i];
        case 1: return wide(static_cast<const half_t *>(x)[i]);
        default: return wide(static_cast<const bhalf_t *>(x)[i]);
    }
}
__device__ __forceinline__ void set_element(void *y, size_t i, float v, uint dtype) {
    switch (dtype) {
        case 0: static_cast<float *>(y)[i] = v; break;
        case 1: static_cast<half_t *>(y)[i] = narrow<half_t>(v); break;
        default: static_cast<bhalf_t *>(y)[i] = narrow<bhalf_t>(v); break;
    }
}
