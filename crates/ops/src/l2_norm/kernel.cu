// L2-normalize: y = x / max(|x|, least) over a row, in f32, one rounding.
#include "launch/cuda/rows.cuh"

template <typename T, int N> __device__ __forceinline__ Run<T, N> divided(const Run<T, N> &x, float length) {
    Run<T, N> out;
#pragma unroll
    for (int j = 0; j < N; j++) out.of[j] = narrow<T>(wide(x.of[j]) / length);
    return out;
}

template <typename T, int N, int RUNS, bool IS_WARP>
__device__ void l2_norm(const T *x, T *y, uint rows, uint n, uint stride, float least) {
    const Team<IS_WARP> team;
    if (team.row >= rows) return;
    x += size_t(team.row) * stride;
    y += size_t(team.row) * n;
    Run<T, N> held[RUNS];
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint i = (r * team.size + team.me) * N;
        if (i < n) held[r] = load<T, N>(x + i);
    }
    float squares = 0.0f;
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        if ((r * team.size + team.me) * N < n) squares += squares_of<T, N>(held[r]);
    }
    const uint behind = (RUNS * team.size + team.me) * N, step = team.size * N;
    for (uint i = behind; i < n; i += step) squares += squares_of<T, N>(load<T, N>(x + i));
    float length = sqrtf(team.sum(squares));
    length = length < least ? least : length; // not `max`, which would drop a NaN
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint i = (r * team.size + team.me) * N;
        if (i < n) put<T, N>(y + i, divided<T, N>(held[r], length));
    }
    for (uint i = behind; i < n; i += step) put<T, N>(y + i, divided<T, N>(load<T, N>(x + i), length));
}

#define L2_NORM(NAME, T, KIND, N, RUNS, IS_WARP, THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS) l2_norm_##KIND##_##NAME(const T *x, T *y, uint rows, uint n, uint stride, \
        float least) { \
        grid_dependency_sync(); \
        l2_norm<T, N, RUNS, IS_WARP>(x, y, rows, n, stride, least); \
    }
#define KINDS(NAME, T) ROWS(L2_NORM, NAME, T)
FORMATS(KINDS)
