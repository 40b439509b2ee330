// Matrix-vector products (GEMV; llama.cpp's name is MMVQ), y = act(x · Wᵀ + b) + residual for up to
// M rows of x in 8 bits and W in a block format: limited by the bandwidth of reading W once. A lane
// unpacks a pair of each of R rows of W and multiplies it, in integers, with every row of x; scales
// are applied once per 16 or 32 elements. `split` warps share their columns (split-K) if the
// columns are too few to fill the card otherwise.
#pragma once
#include "quant/formats.cuh"
#include "quant/activations_q8.cuh"

constexpr uint MMVQ_WARPS = 4;

__device__ __forceinline__ int dot_sixteen(uint4 a, uint4 b, int sum) {
    sum = __dp4a(int(a.x), int(b.x), sum);
    sum = __dp4a(int(a.y), int(b.y), sum);
    sum = __dp4a(int(a.z), int(b.z), sum);
    return __dp4a(int(a.w), int(b.w), sum);
}

// For one row, blocks aligned to 16 bytes take two loads: those of four rows of W are enough in
// flight, and the registers of a second step go to more warps.
template <typename F, int M> constexpr int MMVQ_STEPS = M == 2 || (M == 1 && F::BYTES % 16 != 0) ? 2 : 1;

template <typename F, int M, int R>
__device__ void mmvq(const uint8_t *rounded, const uint8_t *w, const uint16_t *grid, const void *bias, const void *residual, void *y,
    const Sizes &s, uint split) {
    const Rounded x(rounded, s.rows, s.k);
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const uint column = (blockIdx.x * (MMVQ_WARPS / split) + warp / split) * R;
    if (column >= s.n) return; // all `split` warps alike
    const uint8_t *row[R];
#pragma unroll
    for (int r = 0; r < R; r++) row[r] = w + size_t(min(column + r, s.n - 1)) * s.bytes; // rows beyond the last repeat it
    float sums[R][M] = {};
#pragma unroll(MMVQ_STEPS<F, M>)
    for (uint i = warp % split * LANES + lane; i < s.k / 32; i += split * LANES) {
        const uint block = i / F::PAIRS, p = i % F::PAIRS;
        const uint at = block * (2 * F::PAIRS) + F::first(p);
        Pair pairs[R];
#pragma unroll
        for (int r = 0; r < R; r++) pairs[r] = F::pair(row[r] + size_t(block) * F::BYTES, grid, p);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint of = min(uint(m), s.rows - 1);
            const uint4 a = x.sixteen_of(of, at), b = x.sixteen_of(of, at + F::APART);
            const float scale = x.scale_of(of, at);
            const float other = F::APART == 1 ? scale : x.scale_of(of, at + F::APART);
            float sum = 0.0f, sum_of_other = 0.0f;
            if constexpr (F::HAS_MIN) sum = x.sum_of(of, at), sum_of_other = x.sum_of(of, at + F::APART);
#pragma unroll
            for (int r = 0; r < R; r++) {
                const Pair &pair = pairs[r];
                float v = sums[r][m];
                if constexpr (F::APART == 1 && !F::SCALE_PER_16) {
                    const int dot = dot_sixteen(pair.q[1], b, dot_sixteen(pair.q[0], a, 0));
                    v = fmaf(pair.scale[0] * scale, float(dot), v);
                    if constexpr (F::HAS_MIN) v = fmaf(pair.minimum[0], sum + sum_of_other, v);
                } else {
                    v = fmaf(pair.scale[0] * scale, float(dot_sixteen(pair.q[0], a, 0)), v);
                    v = fmaf(pair.scale[1] * other, float(dot_sixteen(pair.q[1], b, 0)), v);
                    if constexpr (F::HAS_MIN) v = fmaf(pair.minimum[0], sum, fmaf(pair.minimum[1], sum_of_other, v));
                }
                sums[r][m] = v;
            }
        }
    }
    // One lane per result.
    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            const float sum = warp_sum(sums[r][m]);
            if (lane == uint(r * M + m)) mine = sum;
        }
    }
    if (split > 1) {
        __shared__ float parts[MMVQ_WARPS][R * M];
        if (lane < R * M) parts[warp][lane] = mine;
        __syncthreads();
        if (warp % split != 0 || lane >= R * M) return;
        for (uint other = 1; other < split; other++) mine += parts[warp + other][lane];
    }
    const uint r = lane / M, m = lane % M;
    if (lane < R * M && m < s.rows && column + r < s.n) finish(mine, m, column + r, bias, residual, y, s);
}

// Thread blocks per multiprocessor: fewer if a lane has more loads in flight, or more sums.
template <typename F, int M>
constexpr int MMVQ_BLOCKS = M == 1 ? (MMVQ_STEPS<F, M> == 1 ? 6 : 4) : M == 2 ? 8 : M == 4 ? 5 : M == 8 ? 4 : 3;

#define MMVQ(NAME, F, M, R) \
    extern "C" __global__ void __launch_bounds__(32 * MMVQ_WARPS, (MMVQ_BLOCKS<F, M>)) quant_mmvq##M##_##NAME(const uint8_t *x, \
        const uint8_t *w, const uint16_t *grid, const void *bias, const void *residual, void *y, QUANT_SIZES, uint split) { \
        grid_dependency_sync(); \
        mmvq<F, M, R>(x, w, grid, bias, residual, y, QUANT_ARGS, split); \
    }
#define MMVQ_SIZES(NAME, F) MMVQ(NAME, F, 1, 4) MMVQ(NAME, F, 2, 2) MMVQ(NAME, F, 4, 2) MMVQ(NAME, F, 8, 2) MMVQ(NAME, F, 16, 2)
