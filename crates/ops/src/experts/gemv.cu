// Matrix products (GEMV) of few pairs of token and expert, each on its own: the goal is to read the
// selected experts' matrices at memory bandwidth. Two launches: up also selects the experts, and
// down adds up. Everything in f32, rounded between the products and at the end.
#include "experts/gemv.cuh"

struct Up {
    // Outputs, without those of a gate.
    uint n, k, step, experts, top, is_renormalised, activation, is_gated;
};

// act(x · Upᵀ) of one pair, R columns per warp; act(x · Gateᵀ) · (x · Upᵀ) of half as many.
// Neighbouring blocks have neighbouring pairs, so that those of one expert find its rows in the
// cache.
template <typename T, int N, uint CAPACITY>
__device__ void up(const T *x, const float *logits, uint *selected, float *probabilities, T *y, Up p, const Weights<T, CAPACITY> &weights) {
    __shared__ uint expert;
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, pair = blockIdx.x, token = pair / p.top;
    if (warp == 0) select_expert(expert, logits, selected, probabilities, p);
    __syncthreads();
    const uint width = p.is_gated ? R / 2 : R, column = (blockIdx.y * (blockDim.x / LANES) + warp) * width;
    if (column >= p.n) return;
    const T *w = weights.of[expert], *row[R];
    x += size_t(token) * p.step;
#pragma unroll
    for (uint r = 0; r < R; r++) row[r] = w + size_t(row_of(r, column, p)) * p.k;
    float sums[R] = {};
#pragma unroll 2
    for (uint i = lane * N; i < p.k; i += LANES * N) {
        Run<T, N> b[R];
#pragma unroll
        for (uint r = 0; r < R; r++) b[r] = load_row<T, N>(row[r] + i);
        const Run<T, N> a = load<T, N>(x + i);
#pragma unroll
        for (uint r = 0; r < R; r++) sums[r] = dot<T, N>(sums[r], a, b[r]);
    }
    y += size_t(pair) * p.n;
#pragma unroll
    for (uint r = 0; r < R; r++) sums[r] = warp_sum(sums[r]);
#pragma unroll
    for (uint r = 0; r < R; r++) {
        const uint to = column + (p.is_gated ? r / 2 : r);
        if (lane != r || to >= p.n || (p.is_gated && r % 2 == 1)) continue;
        const float v = activate(sums[r], p.activation);
        y[to] = narrow<T>(p.is_gated ? v * sums[r ^ 1] : v);
    }
}

struct Down {
    uint n, k, top, residual_step;
};

// The sum over a token's pairs of p · x · Downᵀ, R columns per block: the rows of all its experts
// count as one long row, of which each thread takes two runs at a time.
template <typename T, int N, uint CAPACITY>
__device__ void down(const T *x, const uint *selected, const float *probabilities, const T *bias, const T *residual, T *y, Down p,
    const Weights<T, CAPACITY> &weights) {
    __shared__ const T *matrix[MAX_TOP_K];
    __shared__ float probability[MAX_TOP_K];
    __shared__ float part[R][LANES];
    const uint token = blockIdx.x, column = blockIdx.y * R, lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    if (threadIdx.x < p.top) {
        matrix[threadIdx.x] = weights.of[selected[size_t(token) * p.top + threadIdx.x]];
        probability[threadIdx.x] = probabilities[size_t(token) * p.top + threadIdx.x];
    }
    __syncthreads();
    x += size_t(token) * p.top * p.k;
    const uint runs = p.k / N, all = p.top * runs;
    float sums[R] = {};
    for (uint first = threadIdx.x; first < all; first += 2 * blockDim.x) {
        uint slot[2];
        Run<T, N> a[2], b[2][R];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            // Beyond the end, the first again, with weight zero.
            const uint at = first + h * blockDim.x < all ? first + h * blockDim.x : first;
            slot[h] = at / runs;
            const uint i = at % runs * N;
            const T *w = matrix[slot[h]] + i;
#pragma unroll
            for (uint r = 0; r < R; r++) b[h][r] = load_row<T, N>(w + size_t(min(column + r, p.n - 1)) * p.k);
            a[h] = load<T, N>(x + size_t(at) * N);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (first + h * blockDim.x >= all) continue;
#pragma unroll
            for (uint r = 0; r < R; r++) sums[r] = fmaf(probability[slot[h]], dot<T, N>(0.0f, a[h], b[h][r]), sums[r]);
        }
    }
    end_down(sums, part, lane, warp, column, p.n, [&](uint to, float v) {
        if (bias) v += wide(bias[to]);
        if (residual) v += wide(residual[size_t(token) * p.residual_step + to]);
        y[size_t(token) * p.n + to] = narrow<T>(v);
    });
}

#define ONE(NAME, T, N, KIND, CAPACITY) \
    extern "C" __global__ void experts_up_##KIND##_##CAPACITY##_##NAME(const T *x, const float *logits, uint *selected, float *probabilities, T *y, \
        uint n, uint k, uint step, uint experts, uint top, uint is_renormalised, uint activation, uint is_gated, \
        const __grid_constant__ Weights<T, CAPACITY> weights) { \
        grid_dependency_sync(); \
        up<T, N, CAPACITY>(x, logits, selected, probabilities, y, Up{n, k, step, experts, top, is_renormalised, activation, is_gated}, weights); \
    } \
    extern "C" __global__ void experts_down_##KIND##_##CAPACITY##_##NAME(const T *x, const uint *selected, const float *probabilities, const T *bias, \
        const T *residual, T *y, uint n, uint k, uint top, uint residual_step, const __grid_constant__ Weights<T, CAPACITY> weights) { \
        grid_dependency_sync(); \
        down<T, N, CAPACITY>(x, selected, probabilities, bias, residual, y, Down{n, k, top, residual_step}, weights); \
    }
// Space for as many addresses as most models need, and for the maximum.
#define GEMV(NAME, T) \
    ONE(NAME, T, SIXTEEN<T>, aligned, 128) ONE(NAME, T, SIXTEEN<T>, aligned, 512) ONE(NAME, T, 1, unaligned, 128) ONE(NAME, T, 1, unaligned, 512)
FORMATS(GEMV)
