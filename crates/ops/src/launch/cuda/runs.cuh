// Runs of numbers as f32, also of more than 16 bytes, and their dot products.
#pragma once
#include "launch/cuda/prelude.cuh"

// Reads N adjacent elements as f32.
template <typename T, int N> __device__ __forceinline__ void read(float (&v)[N], const T *x) {
    constexpr int M = N < SIXTEEN<T> ? N : SIXTEEN<T>;
#pragma unroll
    for (int i = 0; i < N; i += M) {
        const Run<T, M> run = load<T, M>(x + i);
#pragma unroll
        for (int j = 0; j < M; j++) v[i + j] = wide(run.of[j]);
    }
}
// Rounds and writes N adjacent elements.
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

// Loads a part of a matrix that other blocks rarely read.
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
