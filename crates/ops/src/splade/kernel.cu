// y = max or sum over a sequence's tokens of log(1 + max(x·Wᵀ + b, 0)), for f16 and bf16, whose
// products are exact in f32 and summed there.
//
// A block owns 128 columns of the vocabulary for one sequence and loops over its tokens, M at a
// time, so that no logit leaves the chip. Its eight warps are two along the tokens and four along
// the columns: each accumulates M / 2 × 32 logits in tensor core fragments. Tiles of 32 elements of
// k arrive by asynchronous copies, four stages ahead of their use; those of the next tokens follow
// without a pause.
#include "launch/cuda/mma.cuh"
#include "splade/splade_weight.cuh"

constexpr uint COLUMNS = 128, THREADS = 256, STAGES = 4;
// Bytes and elements of a row of a tile, and its chunks of 16 bytes.
constexpr uint DEEP = 64, ELEMENTS = 32, PIECES = 4, PIECE = 8;

// The offset of a 16-byte chunk, swizzled: eight rows that are read at once have theirs in
// different banks.
__device__ __forceinline__ uint place(uint row, uint piece) { return row * DEEP + (piece ^ (row / 2 % PIECES)) * 16; }

// Copies rows of a tile, from `first` on, with zeros from row `end` on and beyond k.
template <typename T, uint ROWS>
__device__ __forceinline__ void fetch(uint to, const T *from, uint first, uint end, uint depth, uint k, uint stride) {
#pragma unroll
    for (uint i = 0; i < ROWS * PIECES / THREADS + (ROWS * PIECES % THREADS > 0); i++) {
        const uint at = i * THREADS + threadIdx.x, row = at / PIECES, piece = at % PIECES;
        if (ROWS * PIECES % THREADS > 0 && at >= ROWS * PIECES) continue;
        const bool there = first + row < end && depth + piece * PIECE < k;
        cp_async_16(to + place(row, piece), there ? from + size_t(first + row) * stride + depth + piece * PIECE : from, there);
    }
}

template <typename T, uint M>
__device__ void splade(const T *x, const T *w, const T *bias, float *y, const uint *ranges, uint n, uint k, uint stride, Splade pooling) {
    constexpr uint HIGH = M / 32, WIDE = 4; // 16 × 8 matrices of a warp
    constexpr uint STAGE = (M + COLUMNS) * DEEP;
    extern __shared__ __align__(128) unsigned char scratch[];
    const uint start = ranges[2 * blockIdx.x], end = ranges[2 * blockIdx.x + 1], first = blockIdx.y * COLUMNS;
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, down = warp / 4, across = warp % 4;
    const uint base = shared_address(scratch);
    const uint depths = (k + ELEMENTS - 1) / ELEMENTS, steps = (end - start + M - 1) / M * depths;

    // The next tile to copy: one commit group per step, empty after the last tile.
    uint ahead = 0, ahead_token = start, ahead_depth = 0;
    auto fetch_next = [&]() {
        if (ahead < steps) {
            const uint stage = base + ahead % STAGES * STAGE;
            fetch<T, M>(stage, x, ahead_token, end, ahead_depth, k, stride);
            fetch<T, COLUMNS>(stage + M * DEEP, w, first, n, ahead_depth, k, k);
            ahead_depth += ELEMENTS;
            if (ahead_depth >= k) {
                ahead_depth = 0;
                ahead_token += M;
            }
        }
        ahead++;
        cp_async_commit();
    };
    for (uint i = 0; i < STAGES - 1; i++) fetch_next();

    // A thread's columns: two adjacent ones of each matrix.
    float b[WIDE][2], so_far[WIDE][2];
#pragma unroll
    for (uint j = 0; j < WIDE; j++) {
#pragma unroll
        for (uint c = 0; c < 2; c++) {
            const uint column = first + across * 32 + j * 8 + lane % 4 * 2 + c;
            b[j][c] = bias && column < n ? wide(bias[column]) : 0.0f;
            so_far[j][c] = pooling.none();
        }
    }
    float sums[HIGH][WIDE][4] = {};
    uint token = start, depth = 0;
    for (uint step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads(); // this step's tiles are there, and those that the next copies overwrite have been read
        fetch_next();
        const uint xs = base + step % STAGES * STAGE, ws = xs + M * DEEP;
#pragma unroll
        for (uint half = 0; half < 2; half++) {
            uint bs[WIDE / 2][4];
#pragma unroll
            for (uint j = 0; j < WIDE / 2; j++) {
                // Of 16 columns: the first eight in both halves of the 16 elements, then the
                // others.
                const uint row = across * 32 + j * 16 + lane / 16 * 8 + lane % 8;
                ldmatrix_x4(bs[j], ws + place(row, half * 2 + lane / 8 % 2));
            }
#pragma unroll
            for (uint i = 0; i < HIGH; i++) {
                uint as[4];
                ldmatrix_x4(as, xs + place(down * (M / 2) + i * 16 + lane % 16, half * 2 + lane / 16));
#pragma unroll
                for (uint j = 0; j < WIDE; j++) mma<T>(sums[i][j], as, bs[j / 2][j % 2 * 2], bs[j / 2][j % 2 * 2 + 1]);
            }
        }
        if (++depth < depths) continue;
        // The logits of these tokens are complete.
#pragma unroll
        for (uint i = 0; i < HIGH; i++) {
#pragma unroll
            for (uint c = 0; c < 4; c++) {
                const bool there = token + down * (M / 2) + i * 16 + c / 2 * 8 + lane / 4 < end;
#pragma unroll
                for (uint j = 0; j < WIDE; j++) {
                    if (there) so_far[j][c % 2] = pooling.with(so_far[j][c % 2], sums[i][j][c] + b[j][c % 2]);
                    sums[i][j][c] = 0.0f;
                }
            }
        }
        token += M;
        depth = 0;
    }
    cp_async_wait<0>();
    __syncthreads(); // the tiles have been read: their memory now takes the results of the warps
    float *parts = reinterpret_cast<float *>(scratch);
#pragma unroll
    for (uint j = 0; j < WIDE; j++) {
#pragma unroll
        for (uint c = 0; c < 2; c++) {
            float all = so_far[j][c];
            // Lanes four apart have the same columns.
#pragma unroll
            for (uint apart = 4; apart < LANES; apart *= 2) all = pooling.together(all, __shfl_xor_sync(ALL_LANES, all, apart));
            if (lane < 4) parts[down * COLUMNS + across * 32 + j * 8 + lane * 2 + c] = all;
        }
    }
    __syncthreads();
    if (threadIdx.x < COLUMNS && first + threadIdx.x < n) {
        const float all = pooling.together(parts[threadIdx.x], parts[COLUMNS + threadIdx.x]);
        y[size_t(blockIdx.x) * n + first + threadIdx.x] = pooling.whole(all);
    }
}

#define KIND(NAME, T, M) \
    extern "C" __global__ void __launch_bounds__(THREADS) splade_##M##_##NAME(const T *x, const T *w, const T *bias, float *y, \
        const uint *ranges, uint n, uint k, uint stride, uint sum, uint twice) { \
        grid_dependency_sync(); \
        splade<T, M>(x, w, bias, y, ranges, n, k, stride, Splade{sum != 0, twice != 0}); \
    }
#define HALVES(NAME, T) KIND(NAME, T, 32) KIND(NAME, T, 64) KIND(NAME, T, 128)
HALVES(f16, half_t)
HALVES(bf16, bhalf_t)
