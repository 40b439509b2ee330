// Pooling: one vector per sequence from one vector per token, every mode in one pass over the
// tokens, summed and returned in f32.
//
// A block processes the columns of 32 lanes, N each, of one sequence, and its warps take turns over
// the tokens. A warp loads several tokens before it adds the first.
#include "launch/cuda/prelude.cuh"

// What the modes need, as flags from the host.
constexpr uint SUM = 1, WEIGHTED = 2, MOST = 4;
// The modes, numbered as `Pooling` in Rust.
enum Mode : uint { BY_CLS, BY_MEAN, BY_MAX, BY_MEAN_SQRT_LEN, BY_WEIGHTED_MEAN, BY_LAST_TOKEN };
// Most warps of a block, and tokens loaded ahead.
constexpr uint WARPS = 16, AHEAD = 4;

template <int N> struct Columns {
    float of[N];
    __device__ __forceinline__ Columns(float v) {
#pragma unroll
        for (int j = 0; j < N; j++) of[j] = v;
    }
};

// Combines the columns of all warps in the first warp; always in the same order, so that the sum is
// deterministic.
template <int N>
__device__ __forceinline__ void gather(Columns<N> &v, bool sums, float (*part)[LANES * N]) {
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    __syncthreads(); // earlier parts have been read
#pragma unroll
    for (int j = 0; j < N; j++) part[warp][j * LANES + lane] = v.of[j];
    __syncthreads();
    if (warp > 0) return;
    for (uint i = 1; i < warps; i++) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float other = part[i][j * LANES + lane];
            v.of[j] = sums ? v.of[j] + other : larger(v.of[j], other);
        }
    }
}

template <typename T, int N>
__device__ void pool(const T *x, const uint *sequences, float *y, uint n, uint stride, uint mode_count, uint needs) {
    __shared__ float part[WARPS][LANES * N];
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    // Rows of the sequence that count, and the position of the first of them in it.
    const uint start = sequences[3 * blockIdx.x], end = sequences[3 * blockIdx.x + 1], skipped = sequences[3 * blockIdx.x + 2];
    const uint *modes = sequences + 3 * size_t(gridDim.x); // they follow the sequences
    const uint i = (blockIdx.y * LANES + lane) * N;
    const bool there = i < n;
    x += there ? i : 0; // lanes without a column read too
    Columns<N> sum(0.0f), weighted(0.0f), most(-INFINITY);
    if (needs) {
        for (uint first = start + warp; first < end; first += AHEAD * warps) {
            Run<T, N> runs[AHEAD];
#pragma unroll
            for (uint a = 0; a < AHEAD; a++) {
                if (first + a * warps < end) runs[a] = load<T, N>(x + size_t(first + a * warps) * stride);
            }
#pragma unroll
            for (uint a = 0; a < AHEAD; a++) {
                const uint t = first + a * warps;
                if (t >= end) break;
                const float place = float(t - start + skipped + 1);
#pragma unroll
                for (int j = 0; j < N; j++) {
                    const float v = wide(runs[a].of[j]);
                    if (needs & SUM) sum.of[j] += v;
                    if (needs & WEIGHTED) weighted.of[j] += v * place;
                    if (needs & MOST) most.of[j] = larger(most.of[j], v);
                }
            }
        }
    }
    if (needs & SUM) gather<N>(sum, true, part);
    if (needs & WEIGHTED) gather<N>(weighted, true, part);
    if (needs & MOST) gather<N>(most, false, part);
    if (warp > 0 || !there) return;
    const unsigned long long count = end - start;
    y += size_t(blockIdx.x) * mode_count * n + i;
    for (uint m = 0; m < mode_count; m++, y += n) {
        const uint mode = modes[m];
        Run<T, N> own;
        if (mode == BY_CLS || mode == BY_LAST_TOKEN) own = load<T, N>(x + size_t(mode == BY_CLS ? start : end - 1) * stride);
        // The sum of the positions, from the first that counts to the last.
        const float places = float(count * (2ull * skipped + count + 1) / 2);
        Run<float, N> out;
#pragma unroll
        for (int j = 0; j < N; j++) {
            switch (mode) {
                case BY_MAX: out.of[j] = most.of[j]; break;
                case BY_MEAN: out.of[j] = sum.of[j] / float(count); break;
                case BY_MEAN_SQRT_LEN: out.of[j] = sum.of[j] / sqrtf(float(count)); break;
                case BY_WEIGHTED_MEAN: out.of[j] = weighted.of[j] / places; break;
                default: out.of[j] = wide(own.of[j]);
            }
        }
        put<float, N>(y, out);
    }
}

#define KIND(NAME, T, N, RUNS) \
    extern "C" __global__ void __launch_bounds__(512) pool_##RUNS##_##NAME(const T *x, const uint *sequences, float *y, \
        uint n, uint stride, uint mode_count, uint needs) { \
        grid_dependency_sync(); \
        pool<T, N>(x, sequences, y, n, stride, mode_count, needs); \
    }
#define POOL(NAME, T) KIND(NAME, T, 4, fours) KIND(NAME, T, 1, unaligned)
FORMATS(POOL)
