// y[t] = scale * words[ids[t]] + the rows of further tables: in f32, one rounding. A thread makes a run of a token.
#include "launch/cuda/prelude.cuh"

template <typename T> struct Table {
    const T *table;
    const uint *ids;
    // An id beyond them, which nobody may send, must not read elsewhere: it counts as the last.
    uint rows;
    // Elements from one row to the next.
    uint stride;

    __device__ __forceinline__ const T *at(uint i) const {
        return table + size_t(min(ids[blockIdx.x], rows - 1)) * stride + i;
    }
};

template <typename T, int N>
__device__ void embed(Table<T> words, Table<T> second, Table<T> third, T *y, uint n, float scale) {
    const uint i = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (i >= n) return;
    const Run<T, N> a = load<T, N>(words.at(i));
    Run<T, N> b, c, out;
    if (second.table) b = load<T, N>(second.at(i));
    if (third.table) c = load<T, N>(third.at(i));
#pragma unroll
    for (int j = 0; j < N; j++) {
        float v = wide(a.of[j]) * scale;
        if (second.table) v += wide(b.of[j]);
        if (third.table) v += wide(c.of[j]);
        out.of[j] = narrow<T>(v);
    }
    put<T, N>(y + size_t(blockIdx.x) * n + i, out);
}

#define KIND(NAME, T, N, RUNS) \
    extern "C" __global__ void __launch_bounds__(128) embed_##RUNS##_##NAME(const T *a, const uint *ids_a, uint rows_a, uint stride_a, \
        const T *b, const uint *ids_b, uint rows_b, uint stride_b, const T *c, const uint *ids_c, uint rows_c, uint stride_c, T *y, \
        uint n, float scale) { \
        wait_for_earlier(); \
        embed<T, N>(Table<T>{a, ids_a, rows_a, stride_a}, Table<T>{b, ids_b, rows_b, stride_b}, \
            Table<T>{c, ids_c, rows_c, stride_c}, y, n, scale); \
    }
#define EMBED(NAME, T) KIND(NAME, T, SIXTEEN<T>, runs) KIND(NAME, T, 1, odd)
FORMATS(EMBED)
