// Matrix products (GEMM) of many rows in f32, where tensor cores would round: of experts with f32
// matrices, and of the router with many tokens. A block computes 64 by 64 results, a thread four
// rows of eight columns; k is staged in shared memory 16 elements at a time, one step ahead.
#include "experts/tile.cuh"

constexpr uint SIDE = 64;
constexpr uint THREADS = 128;
constexpr uint DEPTH = 16;
// Floats per k in shared memory: 64, and four that keep it a multiple of 16 bytes.
constexpr uint STEP = SIDE + 4;
// Elements that a thread copies of one row of each side.
constexpr int SHARE = DEPTH * SIDE / THREADS;

// Eight elements from i on, zeros beyond k.
template <typename T, bool IN_RUNS> __device__ __forceinline__ void take(float (&v)[SHARE], const T *row, uint i, uint k) {
    if (IN_RUNS && i + SHARE <= k) return read<T, SHARE>(v, row + i);
#pragma unroll
    for (uint j = 0; j < SHARE; j++) v[j] = i + j < k ? wide(row[i + j]) : 0.0f;
}

// The four rows and eight columns of this thread: rows from 4·(t / 8) on, columns from 4·(t % 8) on
// and as many 32 further. `x` and `w` are row t % 64 of each side.
template <typename X, typename W, bool IN_RUNS> __device__ void product(float (&sums)[4][8], const X *x, const W *w, uint k) {
    __shared__ float scratch[2][2][DEPTH][STEP];
    const uint row = threadIdx.x % SIDE, own = threadIdx.x / SIDE * SHARE;
    const uint down = threadIdx.x / 8 * 4, across = threadIdx.x % 8 * 4;
    float a[SHARE], b[SHARE];
    auto keep = [&](uint half) {
#pragma unroll
        for (uint j = 0; j < SHARE; j++) {
            scratch[half][0][own + j][row] = a[j];
            scratch[half][1][own + j][row] = b[j];
        }
    };
    take<X, IN_RUNS>(a, x, own, k);
    take<W, IN_RUNS>(b, w, own, k);
    keep(0);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 8; c++) sums[r][c] = 0.0f;
    for (uint i = 0, half = 0; i < k; i += DEPTH, half ^= 1) {
        const bool goes_on = i + DEPTH < k;
        if (goes_on) {
            take<X, IN_RUNS>(a, x, i + DEPTH + own, k);
            take<W, IN_RUNS>(b, w, i + DEPTH + own, k);
        }
#pragma unroll
        for (uint d = 0; d < DEPTH; d++) {
            float left[4], right[8];
            read<float, 4>(left, &scratch[half][0][d][down]);
            const float *of_w = &scratch[half][1][d][across];
            const Run<float, 4> first = load<float, 4>(of_w), second = load<float, 4>(of_w + SIDE / 2);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                right[c] = first.of[c];
                right[4 + c] = second.of[c];
            }
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 8; c++) sums[r][c] = fmaf(left[r], right[c], sums[r][c]);
        }
        // The other half was read before the last barrier.
        if (goes_on) keep(half ^ 1);
        __syncthreads();
    }
}

// With a gate, the second half of the tile's columns are the up projections of the gates in the
// first half.
template <bool IN_RUNS>
__device__ void grouped(const float *x, const uint *starts, const uint *sorted, float *y, const Grouped &p,
    const Weights<float, MAX_EXPERTS> &weights) {
    Tile tile;
    if (!tile_of(tile, starts, blockIdx.x, SIDE, p.experts)) return;
    const uint width = p.is_gated ? SIDE / 2 : SIDE, own = threadIdx.x % SIDE;
    // Rows beyond the last repeat it.
    const uint row = min(blockIdx.y * width + own % width, p.n - 1) + own / width * p.n;
    float sums[4][8];
    product<float, float, IN_RUNS>(
        sums, x + size_t(tile.row(own, sorted, p)) * p.step, weights.of[tile.expert] + size_t(row) * p.k, p.k);
#pragma unroll
    for (uint r = 0; r < 4; r++) {
        const uint place = threadIdx.x / 8 * 4 + r;
        if (tile.first + place >= tile.end) continue;
        float *to = y + size_t(tile.target(place, sorted, p)) * p.n;
#pragma unroll
        for (uint c = 0; c < 8; c++) {
            if (p.is_gated && c >= 4) continue;
            const uint column = blockIdx.y * width + threadIdx.x % 8 * 4 + c / 4 * (SIDE / 2) + c % 4;
            if (column >= p.n) continue;
            const float v = activate(sums[r][c], p.activation);
            to[column] = p.is_gated ? v * sums[r][c | 4] : v;
        }
    }
}
#define SIMT(KIND, IN_RUNS) \
    extern "C" __global__ void __launch_bounds__(THREADS) experts_simt_##KIND(const float *x, const uint *starts, const uint *sorted, \
        float *y, uint n, uint k, uint step, uint top, uint experts, uint activation, uint is_up, uint is_gated, \
        const __grid_constant__ Weights<float, MAX_EXPERTS> weights) { \
        grid_dependency_sync(); \
        grouped<IN_RUNS>(x, starts, sorted, y, Grouped{n, k, step, top, experts, activation, is_up, is_gated}, weights); \
    }
SIMT(aligned, true)
SIMT(unaligned, false)

// logits = x · Rᵀ of many tokens.
template <typename T, bool IN_RUNS>
__device__ void logits_of(const T *x, const float *router, float *logits, uint tokens, uint n, uint step, uint experts) {
    const uint own = threadIdx.x % SIDE, first = blockIdx.x * SIDE, column = blockIdx.y * SIDE;
    float sums[4][8];
    product<T, float, IN_RUNS>(sums, x + size_t(min(first + own, tokens - 1)) * step,
        router + size_t(min(column + own, experts - 1)) * n, n); // rows beyond the last repeat it
#pragma unroll
    for (uint r = 0; r < 4; r++) {
#pragma unroll
        for (uint c = 0; c < 8; c++) {
            const uint token = first + threadIdx.x / 8 * 4 + r, e = column + threadIdx.x % 8 * 4 + c / 4 * (SIDE / 2) + c % 4;
            if (token < tokens && e < experts) logits[size_t(token) * experts + e] = sums[r][c];
        }
    }
}
#define ROUTE(NAME, T, KIND, IN_RUNS) \
    extern "C" __global__ void __launch_bounds__(THREADS) experts_logits_tile_##KIND##_##NAME( \
        const T *x, const float *router, float *logits, uint tokens, uint n, uint step, uint experts) { \
        grid_dependency_sync(); \
        logits_of<T, IN_RUNS>(x, router, logits, tokens, n, step, experts); \
    }
#define ROUTES(NAME, T) ROUTE(NAME, T, aligned, true) ROUTE(NAME, T, unaligned, false)
FORMATS(ROUTES)
