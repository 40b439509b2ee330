// Rotates a pair: (a, b) to (a·cos - b·sin, b·cos + a·sin). Each operation is an intrinsic, so that
// no compiler contracts them: results here, in `kv_write` and on the CPU are equal to the bit.
#pragma once
#include "launch/cuda/runs.cuh"

__device__ __forceinline__ float rotated_first(float a, float b, float c, float s) {
    return __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
}
__device__ __forceinline__ float rotated_second(float a, float b, float c, float s) {
    return __fmaf_rn(a, s, __fmul_rn(b, c));
}
