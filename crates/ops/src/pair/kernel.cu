// Rows of several matrices combined by index: a sum with ReLU, a product, or one number per row. All
// in f32; elements are rounded once, sums stay in f32. A warp computes a row.
#include "launch/cuda/prelude.cuh"

// Numbered as `Combine` in Rust.
enum Combine : uint { RELU_SUM, PRODUCT, DOT, SCORE };

template <typename T> struct Matrix {
    const T *rows;
    const uint *ids;
    // Rows; an index beyond them, which callers must not send, counts as the last.
    uint count;
    // Elements from one row to the next.
    uint stride;

    __device__ __forceinline__ const T *at(uint row) const { return rows + size_t(min(ids[row], count - 1)) * stride; }
};

__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; } // NaN stays

template <typename T, int N>
__device__ void pair(Matrix<T> first, Matrix<T> second, Matrix<T> third, const float *offsets, void *y, uint rows, uint n,
    uint combine) {
    const uint lane = threadIdx.x % LANES, row = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (row >= rows) return;
    const T *a = first.at(row), *b = second.at(row), *c = third.rows ? third.at(row) : nullptr;
    float sum = 0.0f;
    for (uint i = lane * N; i < n; i += LANES * N) {
        const Run<T, N> x = load<T, N>(a + i), z = load<T, N>(b + i);
        Run<T, N> w, out;
        if (c) w = load<T, N>(c + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float u = wide(x.of[j]), v = wide(z.of[j]), t = c ? wide(w.of[j]) : 0.0f;
            switch (combine) {
                case RELU_SUM: out.of[j] = narrow<T>(relu(u + v + t)); break;
                case PRODUCT: out.of[j] = narrow<T>(u * v); break;
                case DOT: sum = fmaf(u, v, sum); break;
                default: sum = fmaf(relu(u + v), t, sum);
            }
        }
        if (combine <= PRODUCT) put<T, N>(static_cast<T *>(y) + size_t(row) * n + i, out);
    }
    if (combine <= PRODUCT) return;
    sum = warp_sum(sum);
    if (lane == 0) static_cast<float *>(y)[row] = sum + (offsets ? offsets[min(third.ids[row], third.count - 1)] : 0.0f);
}

#define MATRIX(T, X) const T *X, const uint *ids_##X, uint count_##X, uint stride_##X
#define KIND(NAME, T, N, RUNS) \
    extern "C" __global__ void __launch_bounds__(128) pair_##RUNS##_##NAME(MATRIX(T, a), MATRIX(T, b), MATRIX(T, c), \
        const float *offsets, void *y, uint rows, uint n, uint combine) { \
        grid_dependency_sync(); \
        pair<T, N>(Matrix<T>{a, ids_a, count_a, stride_a}, Matrix<T>{b, ids_b, count_b, stride_b}, \
            Matrix<T>{c, ids_c, count_c, stride_c}, offsets, y, rows, n, combine); \
    }
#define PAIR(NAME, T) KIND(NAME, T, SIXTEEN<T>, aligned) KIND(NAME, T, 1, unaligned)
FORMATS(PAIR)
