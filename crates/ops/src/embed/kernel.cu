// Embedding lookup: y[t] = scale * words[ids[t]] + the rows of further tables, or a norm of it: in
// f32, one rounding. A thread computes a run of a token, and a warp a norm.
#include "layer_norm/norm.cuh"

template <typename T> struct Table {
    const T *table;
    const uint *ids;
    // Rows; an id beyond them, which callers must not send, counts as the last.
    uint rows;
    // Elements from one row to the next.
    uint stride;

    __device__ __forceinline__ const T *at(uint token) const { return table + size_t(min(ids[token], rows - 1)) * stride; }
};

template <typename T, int N>
__device__ void embed(Table<T> words, Table<T> second, Table<T> third, T *y, uint n, float scale) {
    const uint i = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (i >= n) return;
    const Run<T, N> a = load<T, N>(words.at(blockIdx.x) + i);
    Run<T, N> b, c, out;
    if (second.table) b = load<T, N>(second.at(blockIdx.x) + i);
    if (third.table) c = load<T, N>(third.at(blockIdx.x) + i);
#pragma unroll
    for (int j = 0; j < N; j++) {
        float v = wide(a.of[j]) * scale;
        if (second.table) v += wide(b.of[j]);
        if (third.table) v += wide(c.of[j]);
        out.of[j] = narrow<T>(v);
    }
    put<T, N>(y + size_t(blockIdx.x) * n + i, out);
}

template <typename T, int N, int RUNS>
__device__ void embed_normed(Table<T> words, Table<T> second, Table<T> third, const T *w, const T *bias, T *y, uint tokens, uint n,
    float eps) {
    const uint lane = threadIdx.x % LANES, token = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (token >= tokens) return;
    const T *rows[3] = {words.at(token), second.table ? second.at(token) : nullptr, third.table ? third.at(token) : nullptr};
    float s[RUNS][N], sum = 0.0f;
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint i = (r * LANES + lane) * N;
        Run<T, N> of[3];
#pragma unroll
        for (int t = 0; t < 3; t++) {
            if (i < n && rows[t]) of[t] = load<T, N>(rows[t] + i);
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            s[r][j] = i < n ? wide(of[0].of[j]) : 0.0f;
#pragma unroll
            for (int t = 1; t < 3; t++) {
                if (i < n && rows[t]) s[r][j] += wide(of[t].of[j]);
            }
            sum += s[r][j];
        }
    }
    norm_row<T, N, RUNS>(s, sum, w, bias, y + size_t(token) * n, n, eps);
}

#define TABLES(T) const T *a, const uint *ids_a, uint rows_a, uint stride_a, const T *b, const uint *ids_b, uint rows_b, uint stride_b, \
    const T *c, const uint *ids_c, uint rows_c, uint stride_c
#define ARGS(T) Table<T>{a, ids_a, rows_a, stride_a}, Table<T>{b, ids_b, rows_b, stride_b}, Table<T>{c, ids_c, rows_c, stride_c}
#define KIND(NAME, T, N, RUNS) \
    extern "C" __global__ void __launch_bounds__(128) embed_##RUNS##_##NAME(TABLES(T), T *y, uint n, float scale) { \
        grid_dependency_sync(); \
        embed<T, N>(ARGS(T), y, n, scale); \
    }
// Up to 512 and 1024 elements.
#define NORMED(NAME, T, LONGEST) \
    extern "C" __global__ void __launch_bounds__(128) embed_normed_##LONGEST##_##NAME(TABLES(T), const T *w, const T *bias, T *y, \
        uint tokens, uint n, float eps) { \
        grid_dependency_sync(); \
        embed_normed<T, SIXTEEN<T>, LONGEST / LANES / SIXTEEN<T>>(ARGS(T), w, bias, y, tokens, n, eps); \
    }
#define EMBED(NAME, T) KIND(NAME, T, SIXTEEN<T>, aligned) KIND(NAME, T, 1, unaligned) NORMED(NAME, T, 512) NORMED(NAME, T, 1024)
FORMATS(EMBED)
