// y = (s - mean(s)) / sqrt(var(s) + eps) * w + b,  s = x + residual. All in f32, one rounding.
//
// The kernel reads a row or two and writes one, so memory is the limit. A warp holds a row of up to
// 1024 elements in registers, in runs of N elements that are read at once, and no warp waits for
// another. Longer rows get a block, which reads them again from the L1 cache. N is 1 if rows are
// not whole runs.
#include "layer_norm/norm.cuh"

template <typename T, int N, int RUNS>
__device__ void short_rows(const T *x, const T *residual, const T *w, const T *bias, T *y, uint rows, uint n, Lines lines,
    Lines added, uint weights, float eps) {
    const uint lane = threadIdx.x % LANES;
    const uint row = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (row >= rows) return;
    x += lines.at(row);
    if (residual) residual += added.at(row);
    const size_t own = size_t(row % weights) * n;
    float s[RUNS][N];
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint i = (r * LANES + lane) * N;
        Run<T, N> a, b;
        const bool there = i < n;
        if (there) a = load<T, N>(x + i);
        if (there && residual) b = load<T, N>(residual + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            s[r][j] = there ? wide(a.of[j]) + (residual ? wide(b.of[j]) : 0.0f) : 0.0f;
            sum += s[r][j];
        }
    }
    norm_row<T, N, RUNS>(s, sum, w + own, bias ? bias + own : nullptr, y + size_t(row) * n, n, eps);
}

template <typename T>
__device__ void long_row(const T *x, const T *residual, const T *w, const T *bias, T *y, uint rows, uint n, Lines lines,
    Lines added, uint weights, float eps) {
    __shared__ float part[LANES];
    const uint row = blockIdx.x;
    x += lines.at(row);
    if (residual) residual += added.at(row);
    const size_t own = size_t(row % weights) * n;
    auto at = [&](uint i) { return wide(x[i]) + (residual ? wide(residual[i]) : 0.0f); };
    float sum = 0.0f;
    for (uint i = threadIdx.x; i < n; i += blockDim.x) sum += at(i);
    const float mean = block_sum(sum, part) / n;
    float squares = 0.0f;
    for (uint i = threadIdx.x; i < n; i += blockDim.x) squares += (at(i) - mean) * (at(i) - mean);
    const float scale = 1.0f / sqrtf(block_sum(squares, part) / n + eps);
    for (uint i = threadIdx.x; i < n; i += blockDim.x) {
        const float normal = (at(i) - mean) * scale;
        y[size_t(row) * n + i] = narrow<T>(normal * wide(w[own + i]) + (bias ? wide(bias[own + i]) : 0.0f));
    }
}

#define PARAMETERS(T) const T *x, const T *residual, const T *w, const T *bias, T *y, uint rows, uint n, uint heads, uint token, \
    uint head, uint added_token, uint added_head, uint weights, float eps
#define ARGUMENTS x, residual, w, bias, y, rows, n, Lines{heads, token, head}, Lines{heads, added_token, added_head}, weights, eps
#define ONE(NAME, T, KIND, ...) \
    extern "C" __global__ void layer_norm_##KIND##_##NAME(PARAMETERS(T)) { \
        grid_dependency_sync(); \
        __VA_ARGS__(ARGUMENTS); \
    }
// Variants: whole runs of up to 512 and of up to 1024 elements, any row of up to 256, and all
// others.
#define LAYER_NORM(NAME, T) \
    ONE(NAME, T, 512, short_rows<T, SIXTEEN<T>, 16 / SIXTEEN<T>>) \
    ONE(NAME, T, 1024, short_rows<T, SIXTEEN<T>, 32 / SIXTEEN<T>>) \
    ONE(NAME, T, unaligned, short_rows<T, 1, 8>) \
    ONE(NAME, T, long, long_row<T>)
FORMATS(LAYER_NORM)
