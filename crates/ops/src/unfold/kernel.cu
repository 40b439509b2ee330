// y[t][c][j] = x[t + j - (width - 1) / 2][c], zero beyond the ends of t's sequence: a copy. A
// thread writes a run of a token's windows, so that writes coalesce; it reads from a few rows,
// which adjacent threads read too.
#include "launch/cuda/prelude.cuh"

template <typename T, int N>
__device__ void unfold(const T *x, const uint *starts, T *y, uint n, uint stride, uint width, uint sequences) {
    const uint t = blockIdx.x, whole = n * width;
    const uint i = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (i >= whole) return;
    // Finds the sequence of the token: the last one that starts at or before it. After the starts
    // comes the number of tokens.
    uint low = 0, high = sequences;
    while (high - low > 1) {
        const uint middle = (low + high) / 2;
        if (starts[middle] <= t) low = middle;
        else high = middle;
    }
    const size_t start = starts[low], end = starts[low + 1];
    // Window positions before the first token would be negative, so half the width is added on both
    // sides.
    const uint before = width / 2;
    uint c = i / width, j = i % width;
    Run<T, N> out;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const size_t from = size_t(t) + j;
        const bool is_inside = from >= start + before && from < end + before;
        out.of[k] = is_inside ? x[(from - before) * stride + c] : narrow<T>(0.0f);
        if (++j == width) {
            j = 0;
            c++;
        }
    }
    put<T, N>(y + size_t(t) * whole + i, out);
}

#define KIND(NAME, T, N, RUNS) \
    extern "C" __global__ void __launch_bounds__(128) unfold_##RUNS##_##NAME(const T *x, const uint *starts, T *y, uint n, uint stride, \
        uint width, uint sequences) { \
        grid_dependency_sync(); \
        unfold<T, N>(x, starts, y, n, stride, width, sequences); \
    }
#define UNFOLD(NAME, T) KIND(NAME, T, SIXTEEN<T>, aligned) KIND(NAME, T, 1, unaligned)
FORMATS(UNFOLD)
