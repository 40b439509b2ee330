// Shared parts of the products of few pairs of token and expert, for all weight formats: the
// beginning of `up` and the end of `down`.
#pragma once
#include "experts/top_k.cuh"

// Rows of a matrix that a warp of `up` or a block of `down` reads at once.
constexpr uint R = 4;

// A warp finds the expert of its block's pair. Every block repeats the selection: it takes a
// microsecond, less than a separate launch. The pair's first block writes the result.
template <typename Up>
__device__ __forceinline__ void select_expert(uint &expert, const float *logits, uint *selected, float *probabilities, const Up &p) {
    const uint lane = threadIdx.x % LANES, pair = blockIdx.x, token = pair / p.top, slot = pair % p.top;
    uint mine;
    float probability;
    top_k(logits + size_t(token) * p.experts, p.experts, p.top, p.is_renormalised, mine, probability);
    if (lane != slot) return;
    expert = mine;
    if (blockIdx.y == 0) {
        selected[pair] = mine;
        probabilities[pair] = probability;
    }
}

// Matrix row r of a warp whose columns begin at `column`; rows beyond the last repeat it. With
// gates, every other row is the up projection of the gate before it.
template <typename Up> __device__ __forceinline__ uint row_of(uint r, uint column, const Up &p) {
    return min(column + (p.is_gated ? r / 2 : r), p.n - 1) + (p.is_gated && r % 2 == 1 ? p.n : 0);
}

// Reduces the sums of a block's threads, for R columns of n from `column` on; calls `put` for each,
// in a thread of its own.
template <typename Put>
__device__ __forceinline__ void end_down(
    const float (&sums)[R], float (&part)[R][LANES], uint lane, uint warp, uint column, uint n, Put put) {
#pragma unroll
    for (uint r = 0; r < R; r++) {
        const float sum = warp_sum(sums[r]);
        if (lane == 0) part[r][warp] = sum;
    }
    __syncthreads();
    const uint at = column + threadIdx.x;
    if (threadIdx.x >= R || at >= n) return;
    float v = 0.0f;
    for (uint i = 0; i < blockDim.x / LANES; i++) v += part[threadIdx.x][i];
    put(at, v);
}
