// Mixture of experts: y = sum over a token's experts of p·act(x·Upᵀ)·Downᵀ + bias + residual, p by
// the router. The routing never leaves the device.
//
// This file has what surrounds the products: the router's logits, the selection, the sorting of
// pairs of token and expert by expert, and the sum. Products of few pairs are in `gemv.cu`, those
// of many in `tile.cu`.
#include "experts/top_k.cuh"

struct Routing {
    uint tokens, n, step, experts;
};

// logits = x · Rᵀ in f32, for M tokens and one expert per warp: reads of the router are shared.
template <typename T, int N, int M> __device__ void logits_of(const T *x, const float *router, float *logits, Routing p) {
    const uint lane = threadIdx.x % LANES, expert = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES, first = blockIdx.y * M;
    if (expert >= p.experts) return;
    router += size_t(expert) * p.n;
    float sums[M] = {};
#pragma unroll 2
    for (uint i = lane * N; i < p.n; i += LANES * N) {
        float w[N];
        read<float, N>(w, router + i);
#pragma unroll
        for (int m = 0; m < M; m++) {
            float a[N];
            read<T, N>(a, x + size_t(min(first + m, p.tokens - 1)) * p.step + i); // the last token replaces those beyond
#pragma unroll
            for (int j = 0; j < N; j++) sums[m] = fmaf(a[j], w[j], sums[m]);
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        const float sum = warp_sum(sums[m]);
        if (lane == 0 && first + m < p.tokens) logits[size_t(first + m) * p.experts + expert] = sum;
    }
}
#define LOGITS(NAME, T, N, M, KIND) \
    extern "C" __global__ void experts_logits_##KIND##_##NAME( \
        const T *x, const float *router, float *logits, uint tokens, uint n, uint step, uint experts) { \
        grid_dependency_sync(); \
        logits_of<T, N, M>(x, router, logits, Routing{tokens, n, step, experts}); \
    }
#define ROUTES(NAME, T) \
    LOGITS(NAME, T, SIXTEEN<T>, 1, 1) LOGITS(NAME, T, SIXTEEN<T>, 4, 4) LOGITS(NAME, T, SIXTEEN<T>, 8, 8) LOGITS(NAME, T, 1, 4, unaligned)
FORMATS(ROUTES)

// Selects experts: a warp per token.
extern "C" __global__ void experts_top_k(
    const float *logits, uint *selected, float *probabilities, uint tokens, uint experts, uint top, uint is_renormalised) {
    grid_dependency_sync();
    const uint lane = threadIdx.x % LANES, token = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (token >= tokens) return;
    uint mine;
    float probability;
    top_k(logits + size_t(token) * experts, experts, top, is_renormalised, mine, probability);
    if (lane >= top) return;
    selected[size_t(token) * top + lane] = mine;
    probabilities[size_t(token) * top + lane] = probability;
}

// A block per expert, and one more for the end: computes where its pairs begin after sorting by
// expert, and their indices, in the order of tokens. The begin is the number of pairs of earlier
// experts, so that no block waits for another. Each warp has a part of the pairs, counts in it, and
// writes its pairs after those that earlier warps counted.
extern "C" __global__ void experts_sort(const uint *selected, uint *starts, uint *sorted, uint pairs) {
    grid_dependency_sync();
    __shared__ uint before[LANES], own[LANES];
    const uint expert = blockIdx.x, lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    const uint part = (pairs + blockDim.x - 1) / blockDim.x * LANES; // whole warps' worth
    const uint first = min(warp * part, pairs), end = min(first + part, pairs);
    uint below = 0, equal = 0;
#pragma unroll 4
    for (uint i = first + lane; i < end; i += LANES) {
        const uint e = selected[i];
        below += e < expert;
        equal += e == expert;
    }
    below = __reduce_add_sync(ALL_LANES, below);
    equal = __reduce_add_sync(ALL_LANES, equal);
    if (lane == 0) {
        before[warp] = below;
        own[warp] = equal;
    }
    __syncthreads();
    const uint start = __reduce_add_sync(ALL_LANES, lane < warps ? before[lane] : 0);
    if (threadIdx.x == 0) starts[expert] = start;
    uint place = start + __reduce_add_sync(ALL_LANES, lane < warp ? own[lane] : 0);
    if (equal == 0) return;
#pragma unroll 4
    for (uint i = first; i < end; i += LANES) {
        const bool is_own = i + lane < end && selected[i + lane] == expert;
        const uint all = __ballot_sync(ALL_LANES, is_own);
        if (is_own) sorted[place + __popc(all & ((1u << lane) - 1))] = i + lane;
        place += __popc(all);
    }
}

// The sum over a token's pairs. One rounding.
template <typename T, int N>
__device__ void sum(const T *parts, const float *probabilities, const T *bias, const T *residual, T *y, uint n, uint top, uint residual_step) {
    const uint token = blockIdx.x, column = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (column >= n) return;
    float sums[N] = {}, v[N];
#pragma unroll 4
    for (uint s = 0; s < top; s++) {
        const size_t pair = size_t(token) * top + s;
        read<T, N>(v, parts + pair * n + column);
#pragma unroll
        for (int j = 0; j < N; j++) sums[j] = fmaf(probabilities[pair], v[j], sums[j]);
    }
    if (bias) {
        read<T, N>(v, bias + column);
#pragma unroll
        for (int j = 0; j < N; j++) sums[j] += v[j];
    }
    if (residual) {
        read<T, N>(v, residual + size_t(token) * residual_step + column);
#pragma unroll
        for (int j = 0; j < N; j++) sums[j] += v[j];
    }
    write<T, N>(y + size_t(token) * n + column, sums);
}
#define SUM(NAME, T, N, KIND) \
    extern "C" __global__ void experts_sum_##KIND##_##NAME(const T *parts, const float *probabilities, const T *bias, const T *residual, T *y, \
        uint n, uint top, uint residual_step) { \
        grid_dependency_sync(); \
        sum<T, N>(parts, probabilities, bias, residual, y, n, top, residual_step); \
    }
#define SUMS(NAME, T) SUM(NAME, T, SIXTEEN<T>, aligned) SUM(NAME, T, 1, unaligned)
FORMATS(SUMS)
