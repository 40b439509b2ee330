// Writes the results of a block's rows: to y, or to partial results where keys are split.
#pragma once
#include "attention/join.cuh"
#include "attention/rows.cuh"

// Reduces the sums of lanes to those of rows, and converts largest scores to units of log 2.
template <uint D, bool EXACT> __device__ __forceinline__ void finish(Sums<D> &own, float unit) {
#pragma unroll
    for (uint h = 0; h < 2; h++) {
        if (EXACT) {
            own.sum[h] += __shfl_xor_sync(ALL_LANES, own.sum[h], 1);
            own.sum[h] += __shfl_xor_sync(ALL_LANES, own.sum[h], 2);
        }
        own.top[h] *= unit;
    }
}

__device__ __forceinline__ float over(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

// Joins the sums of warps that have different keys of the same 16 rows, in `all`, which reuses the
// keys' shared memory, and writes the rows.
template <typename T, uint D, uint WARPS>
__device__ __forceinline__ void write_joined(const Sums<D> &own, float *all, T *y, float *parts, const Task &t, const Shape &s) {
    __shared__ float tops[WARPS][16], sums[WARPS][16];
    constexpr uint LINE = D + 4;
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    __syncthreads(); // keys and values have been read
#pragma unroll
    for (uint i = 0; i < D / 8; i++) {
#pragma unroll
        for (uint h = 0; h < 2; h++) {
            float *to = all + (warp * 16 + lane / 4 + h * 8) * LINE + i * 8 + lane % 4 * 2;
            put<float, 2>(to, {own.o[i][2 * h], own.o[i][2 * h + 1]});
        }
    }
    if (lane % 4 == 0) {
#pragma unroll
        for (uint h = 0; h < 2; h++) {
            tops[warp][lane / 4 + h * 8] = own.top[h];
            sums[warp][lane / 4 + h * 8] = own.sum[h];
        }
    }
    __syncthreads();
    const Part<16> part(parts, s, blockIdx.x);
    // A warp has every fourth row.
    for (uint row = warp; row < t.rows; row += WARPS) {
        float most = -INFINITY, total = 0.0f, factor[WARPS];
#pragma unroll
        for (uint w = 0; w < WARPS; w++) most = fmaxf(most, tops[w][row]);
#pragma unroll
        for (uint w = 0; w < WARPS; w++) {
            factor[w] = exp2_near(tops[w][row] - below(most));
            total += factor[w] * sums[w][row];
        }
        const float share = over(total);
        for (uint c = lane; c < s.size; c += LANES) {
            float value = 0.0f;
#pragma unroll
            for (uint w = 0; w < WARPS; w++) value += factor[w] * all[(w * 16 + row) * LINE + c];
            if (t.parts > 1) part.row(row)[c] = value;
            else y[t.line_of(row, s) + c] = narrow<T>(value * share);
        }
        if (t.parts > 1 && lane == 0) *part.end(row) = make_float2(most, total);
    }
}

// Writes a warp's own rows where keys are split.
template <uint D, uint ROWS>
__device__ __forceinline__ void write_part(const Sums<D> &own, uint first_row, float *parts, const Task &t, const Shape &s) {
    const uint lane = threadIdx.x % LANES;
    const Part<ROWS> part(parts, s, blockIdx.x);
#pragma unroll
    for (uint h = 0; h < 2; h++) {
        const uint row = first_row + lane / 4 + h * 8;
        if (row >= t.rows) continue;
#pragma unroll
        for (uint i = 0; i < D / 8; i++) {
#pragma unroll
            for (uint e = 0; e < 2; e++) {
                const uint c = i * 8 + lane % 4 * 2 + e;
                if (c < s.size) part.row(row)[c] = own.o[i][2 * h + e];
            }
        }
        if (lane % 4 == 0) *part.end(row) = make_float2(own.top[h], own.sum[h]);
    }
}

// Writes a warp's own rows through its rows of q in shared memory, so that 16 bytes are written at
// once.
template <typename T, uint D>
__device__ __forceinline__ void write_rows(const Sums<D> &own, uint first_row, T *held, T *y, const Task &t, const Shape &s) {
    const uint lane = threadIdx.x % LANES;
    __syncwarp(); // q has been read
#pragma unroll
    for (uint h = 0; h < 2; h++) {
        const float share = over(own.sum[h]);
#pragma unroll
        for (uint i = 0; i < D / 8; i++) {
            T *to = held + (first_row + lane / 4 + h * 8) * (D + 8) + i * 8 + lane % 4 * 2;
            put<T, 2>(to, {narrow<T>(own.o[i][2 * h] * share), narrow<T>(own.o[i][2 * h + 1] * share)});
        }
    }
    __syncwarp();
    const bool in_sixteens = s.size % 8 == 0;
#pragma unroll
    for (uint i = lane; i < 16 * (D / 8); i += LANES) {
        const uint row = first_row + i / (D / 8), c = i % (D / 8) * 8;
        if (row >= t.rows || c >= s.size) continue;
        const Run<T, 8> eight = load<T, 8>(held + row * (D + 8) + c);
        T *to = y + t.line_of(row, s) + c;
        if (in_sixteens) {
            put<T, 8>(to, eight);
        } else {
#pragma unroll
            for (uint j = 0; j < 8; j++) {
                if (c + j < s.size) to[j] = eight.of[j];
            }
        }
    }
}
