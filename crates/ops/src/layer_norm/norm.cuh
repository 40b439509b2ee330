// The norm of a row that a warp holds in registers, RUNS runs of N elements per lane, zero beyond
// n. One rounding.
#pragma once
#include "launch/cuda/rows.cuh"

// `sum` is the sum of this lane's elements. w and bias (may be null) are those of the row.
template <typename T, int N, int RUNS>
__device__ __forceinline__ void norm_row(float (&s)[RUNS][N], float sum, const T *w, const T *bias, T *y, uint n, float eps) {
    const uint lane = threadIdx.x % LANES;
    const float mean = warp_sum(sum) / n;
    float squares = 0.0f;
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const bool there = (r * LANES + lane) * N < n;
#pragma unroll
        for (int j = 0; j < N; j++) {
            s[r][j] -= mean;
            squares += there ? s[r][j] * s[r][j] : 0.0f;
        }
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / n + eps);
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint i = (r * LANES + lane) * N;
        if (i >= n) continue;
        const Run<T, N> a = load<T, N>(w + i);
        Run<T, N> b, out;
        if (bias) b = load<T, N>(bias + i);
#pragma unroll
        for (int j = 0; j < N; j++) out.of[j] = narrow<T>(s[r][j] * scale * wide(a.of[j]) + (bias ? wide(b.of[j]) : 0.0f));
        put<T, N>(y + i, out);
    }
}
