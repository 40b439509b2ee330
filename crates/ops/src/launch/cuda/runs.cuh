// Runs of numbers as f32, of more than 16 bytes too.
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
