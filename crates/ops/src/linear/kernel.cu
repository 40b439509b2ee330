// y = act(x · Wᵀ + b) + residual for a few rows of x: W is read once, and nothing else counts. Each warp makes R columns of y for
// all M rows; 16 bytes of each row of W and of x are read at once, so that a warp has R · 16 · 32 bytes of W on the way and more
// of them before the first is used. Everything in f32, one rounding.
#include "launch/cuda/prelude.cuh"

struct Sizes {
    uint rows, n, k, x_step, residual_step, width, first;
};

template <typename T, int N> __device__ __forceinline__ float dot(float sum, const Run<T, N> &a, const Run<T, N> &b) {
#pragma unroll
    for (int j = 0; j < N; j++) sum = fmaf(wide(a.of[j]), wide(b.of[j]), sum);
    return sum;
}

// act(sum + b) + residual where it belongs.
template <typename T>
__device__ __forceinline__ void finish(float sum, uint row, uint column, const T *bias, const T *residual, T *y, Sizes s,
    uint activation) {
    const uint at = s.first + column;
    float v = activate(sum + (bias ? wide(bias[at]) : 0.0f), activation);
    if (residual) v += wide(residual[size_t(row) * s.residual_step + at]);
    y[size_t(row) * s.width + at] = narrow<T>(v);
}

template <typename T, int N, int M, int R>
__device__ void few(const T *x, const T *w, const T *bias, const T *residual, T *y, Sizes s, uint activation) {
    const uint lane = threadIdx.x % LANES;
    const uint column = (blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES) * R;
    if (column >= s.n) return;
    const T *row[R];
#pragma unroll
    for (int r = 0; r < R; r++) row[r] = w + size_t(min(column + r, s.n - 1)) * s.k; // the last stands in for those beyond
    float sums[R][M] = {};
#pragma unroll 4
    for (uint i = lane * N; i < s.k; i += LANES * N) {
        Run<T, N> b[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            if constexpr (N == SIXTEEN<T>) b[r] = load_once<T>(row[r] + i);
            else b[r] = load<T, N>(row[r] + i);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            const Run<T, N> a = load<T, N>(x + size_t(min(uint(m), s.rows - 1)) * s.x_step + i);
#pragma unroll
            for (int r = 0; r < R; r++) sums[r][m] = dot<T, N>(sums[r][m], a, b[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            const float sum = warp_sum(sums[r][m]);
            if (lane == uint(r * M + m) && uint(m) < s.rows && column + r < s.n) {
                finish(sum, m, column + r, bias, residual, y, s, activation);
            }
        }
    }
}

// What cuBLASLt leaves to do: act(sums + b) + residual, where sums may lie where y is to be. A thread has a run.
template <typename T, int N>
__device__ void then(const float *sums, const T *bias, const T *residual, T *y, Sizes s, uint activation) {
    const size_t i = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (i >= size_t(s.rows) * s.n) return;
    const size_t row = i / s.n, column = i % s.n, at = s.first + column;
    constexpr int FOUR = N < 4 ? N : 4;
    Run<T, N> b = {}, added = {}, out;
    if (bias) b = load<T, N>(bias + at);
    if (residual) added = load<T, N>(residual + row * s.residual_step + at);
#pragma unroll
    for (int f = 0; f < N; f += FOUR) {
        const Run<float, FOUR> sum = load<float, FOUR>(sums + row * s.x_step + column + f);
#pragma unroll
        for (int j = 0; j < FOUR; j++) {
            out.of[f + j] = narrow<T>(activate(sum.of[j] + wide(b.of[f + j]), activation) + wide(added.of[f + j]));
        }
    }
    put<T, N>(y + row * s.width + at, out);
}

#define SIZES uint rows, uint n, uint k, uint x_step, uint residual_step, uint width, uint first, uint activation
#define GIVEN Sizes{rows, n, k, x_step, residual_step, width, first}, activation
#define FEW(NAME, T, N, M, R, KIND) \
    extern "C" __global__ void linear_##KIND##_##NAME(const T *x, const T *w, const T *bias, const T *residual, T *y, SIZES) { \
        few<T, N, M, R>(x, w, bias, residual, y, GIVEN); \
    }
#define THEN(NAME, T, N, KIND) \
    extern "C" __global__ void linear_##KIND##_##NAME(const float *sums, const T *bias, const T *residual, T *y, SIZES) { \
        then<T, N>(sums, bias, residual, y, GIVEN); \
    }
#define LINEAR(NAME, T) \
    FEW(NAME, T, SIXTEEN<T>, 1, 2, few1) \
    FEW(NAME, T, SIXTEEN<T>, 2, 2, few2) \
    FEW(NAME, T, SIXTEEN<T>, 4, 4, few4) \
    FEW(NAME, T, 1, 4, 2, odd) \
    THEN(NAME, T, SIXTEEN<T>, then) \
    THEN(NAME, T, 1, then_odd)
FORMATS(LINEAR)
