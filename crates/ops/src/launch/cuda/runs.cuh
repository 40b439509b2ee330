// Runs of numbers as f32, of more than 16 bytes too, and their products.
#pragma once
#include "launch/cuda/prelude.cuh"

// N neighbours in f32.
template <typename T, int N> __device__ __forceinline__ void read(float (&v)[N], const T *x) {
    constexpr int M = N < SIXTEEN<T> ? N : SIXTEEN<T>;
#pragma unroll
    for (int i = 0; i < N; i += M) {
        const Run<T, M> run = load<T, M>(x + i);
#pragma unroll
        for (int j = 0; j < M; j++) v[i + j] = wide(run.of[j]);
    }
}
// The same, rounded and written.
template <typename T, int N> __device__ __forceinline__ void write(T *y, const float (&v)[N]) {
    constexpr int M = N < SIXTEEN<T> ? N : SIXTEEN<T>;
#pragma unroll
    for (int i = 0; i < N; i += M) {
        Run<T, M> run;
#pragma unroll
        for (int j = 0; j < M; j++) run.of[j] = narrow<T>(v[i + j]);
        put<T, M>(y + i, run);
    }
}

// Of a matrix, which other blocks hardly ask for.
template <typename T, int N> __device__ __forceinline__ Run<T, N> load_row(const T *w) {
    if constexpr (N == SIXTEEN<T>) return load_once<T>(w);
    else return load<T, N>(w);
}
// sum + a · b.
template <typename T, int N> __device__ __forceinline__ float dot(float sum, const Run<T, N> &a, const Run<T, N> &b) {
#pragma unroll
    for (int j = 0; j < N; j++) sum = fmaf(wide(a.of[j]), wide(b.of[j]), sum);
    return sum;
}
