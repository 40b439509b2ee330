// y = max or sum over a sequence's tokens of log(1 + max(x·Wᵀ + b, 0)) with the products in f32,
// for rows of any alignment.
//
// A block owns 64 columns of the vocabulary for one sequence and loops over its tokens, 64 at a
// time, so that no logit leaves the chip. A thread computes 4 × 4 logits, whose rows and columns
// are 16 apart, so that reads coalesce.
#include "splade/splade_weight.cuh"

constexpr uint SIDE = 64, DEEP = 16, THREADS = 256, OWN = 4;

template <typename T>
__device__ void splade(const T *x, const T *w, const T *bias, float *y, const uint *ranges, uint n, uint k, uint stride, Splade pooling) {
    // One element of padding per row, so that those of one column of the tile are in different
    // banks.
    __shared__ float xs[DEEP][SIDE + 1], ws[DEEP][SIDE + 1];
    const uint start = ranges[2 * blockIdx.x], end = ranges[2 * blockIdx.x + 1], first = blockIdx.y * SIDE;
    const uint across = threadIdx.x % 16, down = threadIdx.x / 16;
    float b[OWN], so_far[OWN];
#pragma unroll
    for (uint j = 0; j < OWN; j++) {
        const uint column = first + j * 16 + across;
        b[j] = bias && column < n ? wide(bias[column]) : 0.0f;
        so_far[j] = pooling.none();
    }
    for (uint token = start; token < end; token += SIDE) {
        float sums[OWN][OWN] = {};
        for (uint depth = 0; depth < k; depth += DEEP) {
            __syncthreads(); // the last tiles have been read
#pragma unroll
            for (uint r = 0; r < OWN; r++) {
                const uint row = r * 16 + down, at = depth + across;
                xs[across][row] = token + row < end && at < k ? wide(x[size_t(token + row) * stride + at]) : 0.0f;
                ws[across][row] = first + row < n && at < k ? wide(w[size_t(first + row) * k + at]) : 0.0f;
            }
            __syncthreads();
#pragma unroll
            for (uint d = 0; d < DEEP; d++) {
#pragma unroll
                for (uint i = 0; i < OWN; i++) {
#pragma unroll
                    for (uint j = 0; j < OWN; j++) {
                        sums[i][j] = fmaf(xs[d][i * 16 + down], ws[d][j * 16 + across], sums[i][j]);
                    }
                }
            }
        }
#pragma unroll
        for (uint i = 0; i < OWN; i++) {
            if (token + i * 16 + down >= end) continue;
#pragma unroll
            for (uint j = 0; j < OWN; j++) so_far[j] = pooling.with(so_far[j], sums[i][j] + b[j]);
        }
    }
    __syncthreads();
#pragma unroll
    for (uint j = 0; j < OWN; j++) xs[down][j * 16 + across] = so_far[j];
    __syncthreads();
    if (threadIdx.x < SIDE && first + threadIdx.x < n) {
        float all = xs[0][threadIdx.x];
        for (uint i = 1; i < 16; i++) all = pooling.together(all, xs[i][threadIdx.x]);
        y[size_t(blockIdx.x) * n + first + threadIdx.x] = pooling.whole(all);
    }
}

#define SPLADE(NAME, T) \
    extern "C" __global__ void __launch_bounds__(THREADS) splade_##NAME(const T *x, const T *w, const T *bias, float *y, \
        const uint *ranges, uint n, uint k, uint stride, uint sum, uint twice) { \
        grid_dependency_sync(); \
        splade<T>(x, w, bias, y, ranges, n, k, stride, Splade{sum != 0, twice != 0}); \
    }
FORMATS(SPLADE)
