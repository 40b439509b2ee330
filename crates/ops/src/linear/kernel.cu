// Matrix–vector products (GEMV), y = act(x · Wᵀ + b) + residual for one row of x: limited by the
// bandwidth of reading W once. Each warp computes a column of y, and each lane has four loads of 16
// bytes of its row of W in flight before it uses the first. cuBLASLt takes more than one row
// (GEMM). Everything in f32, one rounding.
#include "launch/cuda/runs.cuh"
#include "linear/sizes.cuh"

// Stores act(sum + b) + residual.
template <typename T>
__device__ __forceinline__ void finish(float sum, uint row, uint column, const T *bias, const T *residual, T *y, Sizes s,
    uint activation) {
    const uint at = s.first + column;
    float v = activate(sum + (bias ? wide(bias[at]) : 0.0f), activation);
    if (residual) v += wide(residual[size_t(row) * s.residual_step + at]);
    y[size_t(row) * s.width + at] = narrow<T>(v);
}

template <typename T, int N>
__device__ void gemv(const T *x, const T *w, const T *bias, const T *residual, T *y, Sizes s, uint activation) {
    constexpr uint AT_ONCE = 4, STEP = LANES * N;
    const uint lane = threadIdx.x % LANES;
    const uint column = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (column >= s.n) return;
    w += size_t(column) * s.k;
    auto next = [&](uint i) { return load_row<T, N>(w + i); };
    float sum = 0.0f;
    uint i = lane * N;
    for (; i + (AT_ONCE - 1) * STEP < s.k; i += AT_ONCE * STEP) {
        Run<T, N> b[AT_ONCE];
#pragma unroll
        for (uint u = 0; u < AT_ONCE; u++) b[u] = next(i + u * STEP);
#pragma unroll
        for (uint u = 0; u < AT_ONCE; u++) sum = dot<T, N>(sum, load<T, N>(x + i + u * STEP), b[u]);
    }
    for (; i < s.k; i += STEP) sum = dot<T, N>(sum, load<T, N>(x + i), next(i));
    sum = warp_sum(sum);
    if (lane == 0) finish(sum, 0, column, bias, residual, y, s, activation);
}

// Second pass after cuBLASLt: act(sums + b) + residual; sums may be stored in y. Each thread has a
// run of elements.
template <typename T, int N>
__device__ void epilogue(const float *sums, const T *bias, const T *residual, T *y, Sizes s, uint activation) {
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

#define GEMV(NAME, T, N, KIND) \
    extern "C" __global__ void linear_##KIND##_##NAME(const T *x, const T *w, const T *bias, const T *residual, T *y, SIZES) { \
        grid_dependency_sync(); \
        gemv<T, N>(x, w, bias, residual, y, ARGS, activation); \
    }
#define EPILOGUE(NAME, T, N, KIND) \
    extern "C" __global__ void linear_##KIND##_##NAME(const float *sums, const T *bias, const T *residual, T *y, SIZES) { \
        grid_dependency_sync(); \
        epilogue<T, N>(sums, bias, residual, y, ARGS, activation); \
    }
#define LINEAR(NAME, T) \
    GEMV(NAME, T, SIXTEEN<T>, gemv) \
    GEMV(NAME, T, 1, gemv_unaligned) \
    EPILOGUE(NAME, T, SIXTEEN<T>, epilogue) \
    EPILOGUE(NAME, T, 1, epilogue_unaligned)
FORMATS(LINEAR)
