// What blocks leave of their parts, and how the last of them joins those. Nobody waits for another block: each counts itself when
// its part is written, and who finds that all others have been there reads them, in their order, so that a result is the same
// whoever comes last.
#pragma once
#include "attention/task.cuh"

// Of a block with ROWS rows: results before they are divided, row by row, then of each row its largest score in units of log 2 and
// its sum.
template <uint ROWS> struct Part {
    float *results;
    uint size;

    __device__ __forceinline__ Part(float *parts, const Shape &s, uint block)
        : results(parts + size_t(block) * ROWS * (s.size + 2)), size(s.size) {}
    __device__ __forceinline__ float *row(uint r) const { return results + r * size; }
    // Always at a multiple of eight bytes, since ROWS is even.
    __device__ __forceinline__ float2 *end(uint r) const { return reinterpret_cast<float2 *>(results + ROWS * size) + r; }
};

// Whether all other parts of this block's rows have been written; all threads call it when they have written their own. The count
// is 0 again behind the last, as the next launch wants it.
__device__ __forceinline__ bool is_last(const uint *table, const Task &t, const Shape &s) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint *ticket = const_cast<uint *>(table) + s.tickets + blockIdx.x / (s.shared * s.splits) * s.shared + t.head;
        last = atomicInc(ticket, t.parts - 1) == t.parts - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

template <uint N> __device__ __forceinline__ Run<float, N> load_shared_by_all(const float *x) {
    Run<float, N> run;
    if constexpr (N == 4) {
        const float4 four = __ldcg(reinterpret_cast<const float4 *>(x));
        run = {four.x, four.y, four.z, four.w};
    } else {
        run.of[0] = __ldcg(x);
    }
    return run;
}

// N neighbours of a row a thread.
template <typename T, uint ROWS, uint N>
__device__ __forceinline__ void join_runs(float *parts, T *y, const Task &t, const Shape &s, const float *tops) {
    const uint first = blockIdx.x - t.part * s.shared, runs = s.size / N;
    for (uint i = threadIdx.x; i < t.rows * runs; i += blockDim.x) {
        const uint r = i / runs, c = i % runs * N;
        float total = 0.0f, value[N] = {};
#pragma unroll 8
        for (uint p = 0; p < t.parts; p++) {
            const Part<ROWS> part(parts, s, first + p * s.shared);
            const float2 end = __ldcg(part.end(r));
            const Run<float, N> run = load_shared_by_all<N>(part.row(r) + c);
            const float factor = exp2f(end.x - tops[r]);
            total = fmaf(end.y, factor, total);
#pragma unroll
            for (uint j = 0; j < N; j++) value[j] = fmaf(run.of[j], factor, value[j]);
        }
        const float over = total == 0.0f ? 0.0f : 1.0f / total;
        Run<T, N> out;
#pragma unroll
        for (uint j = 0; j < N; j++) out.of[j] = narrow<T>(value[j] * over);
        put<T, N>(y + t.line_of(r, s) + c, out);
    }
}

// Parts by their largest scores, as blocks of keys are joined in one. Parts of the same rows are `shared` blocks apart.
template <typename T, uint ROWS>
__device__ __forceinline__ void join(float *parts, T *y, const Task &t, const Shape &s) {
    __shared__ float tops[ROWS];
    const uint lane = threadIdx.x % LANES, first = blockIdx.x - t.part * s.shared;
    for (uint r = threadIdx.x / LANES; r < t.rows; r += blockDim.x / LANES) {
        float top = -INFINITY;
        for (uint p = lane; p < t.parts; p += LANES) {
            top = fmaxf(top, __ldcg(Part<ROWS>(parts, s, first + p * s.shared).end(r)).x);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, step));
        if (lane == 0) tops[r] = below(top);
    }
    __syncthreads();
    if (s.size % 4 == 0) join_runs<T, ROWS, 4>(parts, y, t, s, tops);
    else join_runs<T, ROWS, 1>(parts, y, t, s, tops);
}
