// A pair turned: (a, b) to (a·cos - b·sin, b·cos + a·sin). Each operation is named, so that no compiler joins others to one: here, in
// `store` and on the CPU the results are the same to the bit.
#pragma once
#include "launch/cuda/runs.cuh"

__device__ __forceinline__ float first_turned(float a, float b, float c, float s) {
    return __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
}
__device__ __forceinline__ float second_turned(float a, float b, float c, float s) {
    return __fmaf_rn(a, s, __fmul_rn(b, c));
}
