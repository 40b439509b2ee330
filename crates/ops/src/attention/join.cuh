// Partial results of blocks whose keys are split, and how the last block joins them. No block waits
// for another: each increments a counter when its part is written, and the block that finds all
// others done reads the parts, in their order, so that the result does not depend on which block is
// last.
#pragma once
#include "attention/task.cuh"

// Layout of a part with ROWS rows: results before the division, row by row, then for each row its
// largest score in units of log 2 and its sum.
template <uint ROWS> struct Part {
    float *results;
    uint size;

    __device__ __forceinline__ Part(float *parts, const Shape &s, uint block)
        : results(parts + size_t(block) * ROWS * (s.size + 2)), size(s.size) {}
    __device__ __forceinline__ float *row(uint r) const { return results + r * size; }
    // Always at a multiple of eight bytes, because ROWS is even.
    __device__ __forceinline__ float2 *end(uint r) const { return reinterpret_cast<float2 *>(results + ROWS * size) + r; }
};

// Whether all other parts of this block's rows have been written; all threads call it after writing
// their own. The last block resets the counter to 0 for the next launch.
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

// Joins parts by their largest scores, as blocks of keys are within a part; loads eight at a time
// to hide latency. A thread has N neighbouring elements of a row. Parts of the same rows are
// `shared` blocks apart.
template <typename T, uint ROWS, uint N>
__device__ __forceinline__ void join_runs(float *parts, T *y, const Task &t, const Shape &s) {
    constexpr uint AT_ONCE = 8;
    const uint first = blockIdx.x - t.part * s.shared, runs = s.size / N;
    for (uint i = threadIdx.x; i < t.rows * runs; i += blockDim.x) {
        const uint r = i / runs, c = i % runs * N;
        float top = -INFINITY, total = 0.0f, value[N] = {};
        for (uint p = 0; p < t.parts; p += AT_ONCE) {
            float2 end[AT_ONCE];
            Run<float, N> run[AT_ONCE];
#pragma unroll
            for (uint j = 0; j < AT_ONCE; j++) {
                // Parts beyond the last contribute nothing.
                const Part<ROWS> part(parts, s, first + min(p + j, t.parts - 1) * s.shared);
                end[j] = __ldcg(part.end(r));
                run[j] = load_shared_by_all<N>(part.row(r) + c);
                if (p + j >= t.parts) end[j].x = -INFINITY;
            }
            float most = top;
#pragma unroll
            for (uint j = 0; j < AT_ONCE; j++) most = fmaxf(most, end[j].x);
            const float less = exp2f(top - below(most));
            total *= less;
#pragma unroll
            for (uint e = 0; e < N; e++) value[e] *= less;
#pragma unroll
            for (uint j = 0; j < AT_ONCE; j++) {
                if (p + j >= t.parts) continue;
                const float factor = exp2f(end[j].x - below(most));
                total = fmaf(end[j].y, factor, total);
#pragma unroll
                for (uint e = 0; e < N; e++) value[e] = fmaf(run[j].of[e], factor, value[e]);
            }
            top = most;
        }
        const float over = total == 0.0f ? 0.0f : 1.0f / total;
        Run<T, N> out;
#pragma unroll
        for (uint e = 0; e < N; e++) out.of[e] = narrow<T>(value[e] * over);
        put<T, N>(y + t.line_of(r, s) + c, out);
    }
}

template <typename T, uint ROWS>
__device__ __forceinline__ void join(float *parts, T *y, const Task &t, const Shape &s) {
    if (s.size % 4 == 0) join_runs<T, ROWS, 4>(parts, y, t, s);
    else join_runs<T, ROWS, 1>(parts, y, t, s);
}
