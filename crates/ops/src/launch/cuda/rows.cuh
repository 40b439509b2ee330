// Kernels that read rows, reduce them and write them again: the offset of a row, the threads that
// process it, and how much of it is in registers. See `rows.rs`.
//
// A team (a warp or a block) processes a row. Each thread holds RUNS runs of N adjacent elements, a
// team's width apart, so that a short row is read once and all at once. The rest of a longer row is
// read again from a cache.
#pragma once
#include "launch/cuda/runs.cuh"

// The offset of a row of x or of the residual: the heads of a token may be part of a wider
// projection.
struct Lines {
    uint heads, token, head;
    __device__ size_t at(uint row) const { return size_t(row / heads) * token + size_t(row % heads) * head; }
};

template <bool IS_WARP> struct Team {
    uint row, me, size;

    __device__ __forceinline__ Team() {
        if constexpr (IS_WARP) {
            row = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
            me = threadIdx.x % LANES;
            size = LANES;
        } else {
            row = blockIdx.x;
            me = threadIdx.x;
            size = blockDim.x;
        }
    }

    __device__ __forceinline__ float sum(float v) const {
        if constexpr (IS_WARP) {
            return warp_sum(v);
        } else {
            __shared__ float part[LANES];
            return block_sum(v, part);
        }
    }

    __device__ __forceinline__ float max(float v) const {
        if constexpr (IS_WARP) {
            return warp_max(v);
        } else {
            __shared__ float part[LANES];
            return block_max(v, part);
        }
    }
};

template <typename T, int N> __device__ __forceinline__ float squares_of(const Run<T, N> &x) { return dot<T, N>(0.0f, x, x); }

// KERNEL(NAME, T, KIND, N, RUNS, IS_WARP, THREADS) for each kind of row: whole runs of up to 512 or
// 1024 elements, any row of up to 256, whole runs in few rows and in many, and all others. THREADS
// is the most threads of a block.
#define ROWS(KERNEL, NAME, T) \
    KERNEL(NAME, T, 512, SIXTEEN<T>, 16 / SIXTEEN<T>, true, 128) \
    KERNEL(NAME, T, 1024, SIXTEEN<T>, 32 / SIXTEEN<T>, true, 128) \
    KERNEL(NAME, T, unaligned, 1, 8, true, 128) \
    KERNEL(NAME, T, one, SIXTEEN<T>, 1, false, 1024) \
    KERNEL(NAME, T, four, SIXTEEN<T>, 4, false, 1024) \
    KERNEL(NAME, T, long, 1, 4, false, 1024)
