// The weight of a logit in its sequence: log(1 + max(x, 0)), or that logarithm twice. NaN stays
// NaN.
#pragma once
#include "launch/cuda/prelude.cuh"

struct Splade {
    // Sum instead of maximum.
    bool sum;
    // Whether the logarithm is taken twice.
    bool twice;

    __device__ __forceinline__ float weigh(float logit) const {
        const float weight = log1pf(logit < 0.0f ? 0.0f : logit);
        return twice ? log1pf(weight) : weight;
    }
    __device__ __forceinline__ float none() const { return sum ? 0.0f : -INFINITY; }
    // Adds one more logit. The logarithm is monotonic, so the largest logit has the largest weight.
    __device__ __forceinline__ float with(float so_far, float logit) const {
        return sum ? so_far + weigh(logit) : larger(so_far, logit);
    }
    // Combines two parts of a sequence.
    __device__ __forceinline__ float together(float a, float b) const { return sum ? a + b : larger(a, b); }
    __device__ __forceinline__ float whole(float so_far) const { return sum ? so_far : weigh(so_far); }
};
