// y = x / sqrt(mean(x^2) + eps) * w: the sum and the normalized value in f32, rounded to T,
// multiplied by w in T. In Gemma's form the product with 1 + w is rounded once. A residual is added
// afterwards and rounded once more.
//
// With many rows memory bandwidth is the limit, with one row the latency of the first read: so the
// weights are loaded together with the row.
#include "launch/cuda/rows.cuh"

template <typename T> __device__ __forceinline__ float rounded(float v) { return wide(narrow<T>(v)); }

template <typename T, int N>
__device__ __forceinline__ Run<T, N> weighted(const Run<T, N> &x, float scale, const Run<T, N> &w, const T *residual,
    bool from_one) {
    Run<T, N> added, out;
    if (residual) added = load<T, N>(residual);
#pragma unroll
    for (int j = 0; j < N; j++) {
        float v = wide(x.of[j]) * scale;
        v = from_one ? v * (1.0f + wide(w.of[j])) : rounded<T>(v) * wide(w.of[j]);
        if (residual) v = rounded<T>(v) + wide(added.of[j]);
        out.of[j] = narrow<T>(v);
    }
    return out;
}

template <typename T, int N, int RUNS, bool IS_WARP>
__device__ void rms_norm(const T *x, const T *w, const T *residual, T *y, uint rows, uint n, Lines lines, Lines added,
    uint from_one, float eps) {
    const Team<IS_WARP> team;
    if (team.row >= rows) return;
    x += lines.at(team.row);
    if (residual) residual += added.at(team.row);
    y += size_t(team.row) * n;
    // With many rows in blocks, registers matter more than the latency of one row.
    constexpr bool AT_ONCE = IS_WARP || RUNS == 1;
    Run<T, N> held[RUNS], weights[AT_ONCE ? RUNS : 1];
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint i = (r * team.size + team.me) * N;
        if (i < n) held[r] = load<T, N>(x + i);
    }
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint i = (r * team.size + team.me) * N;
        if (AT_ONCE && i < n) weights[AT_ONCE ? r : 0] = load<T, N>(w + i);
    }
    float squares = 0.0f;
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        if ((r * team.size + team.me) * N < n) squares += squares_of<T, N>(held[r]);
    }
    const uint behind = (RUNS * team.size + team.me) * N, step = team.size * N;
    for (uint i = behind; i < n; i += step) squares += squares_of<T, N>(load<T, N>(x + i));
    const float scale = 1.0f / sqrtf(team.sum(squares) / n + eps);
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint i = (r * team.size + team.me) * N;
        if (i >= n) continue;
        if (!AT_ONCE) weights[0] = load<T, N>(w + i);
        put<T, N>(y + i, weighted<T, N>(held[r], scale, weights[AT_ONCE ? r : 0], residual ? residual + i : nullptr, from_one));
    }
    for (uint i = behind; i < n; i += step) {
        put<T, N>(y + i,
            weighted<T, N>(load<T, N>(x + i), scale, load<T, N>(w + i), residual ? residual + i : nullptr, from_one));
    }
}

#define RMS_NORM(NAME, T, KIND, N, RUNS, IS_WARP, THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS) rms_norm_##KIND##_##NAME(const T *x, const T *w, const T *residual, \
        T *y, uint rows, uint n, uint heads, uint token, uint head, uint added_token, uint added_head, uint from_one, float eps) { \
        grid_dependency_sync(); \
        rms_norm<T, N, RUNS, IS_WARP>( \
            x, w, residual, y, rows, n, Lines{heads, token, head}, Lines{heads, added_token, added_head}, from_one, eps); \
    }
#define KINDS(NAME, T) ROWS(RMS_NORM, NAME, T)
FORMATS(KINDS)
