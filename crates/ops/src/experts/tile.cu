// Grouped matrix products (GEMM) of many pairs of token and expert in 16-bit floats, on tensor
// cores: a block computes a tile of an expert's pairs and of 128 rows of its matrix, with sums in
// f32. Neighbouring blocks have neighbouring tiles of pairs, so that those of one expert read a
// part of its matrix at the same time and memory delivers it once.
//
// Both sides are staged in shared memory 64 elements of k at a time, some steps ahead. A row there
// is eight chunks of 16 bytes, swizzled by the row's index: eight rows' chunks of one k are in
// different banks, as `ldmatrix` needs.
#include "experts/tile.cuh"
#include "launch/cuda/mma.cuh"

constexpr uint WARPS = 4;
constexpr uint DEPTH = 64;
// A row of DEPTH 16-bit floats, and its chunks.
constexpr uint ROW = 2 * DEPTH;
constexpr uint CHUNKS = ROW / 16;
// Rows that the threads copy at once.
constexpr uint AT_ONCE = WARPS * LANES / CHUNKS;

__device__ __forceinline__ uint chunk_at(uint row, uint chunk) { return row * ROW + (chunk ^ (row % CHUNKS)) * 16; }

// TALL pairs by WIDE rows of the matrix: M by N fragments of 16 by 8 per warp, with UP warps along
// the pairs.
template <typename T, int UP, int M, int N, int STAGES, bool IN_RUNS> struct Product {
    static constexpr uint ACROSS = WARPS / UP, TALL = 16 * M * UP, WIDE = 8 * N * ACROSS;
    static constexpr uint STAGE = (TALL + WIDE) * ROW;

    const T *x, *w;
    uint k, x_step;
    // The rows that this thread copies.
    uint x_rows[TALL / AT_ONCE], w_rows[WIDE / AT_ONCE];
    unsigned char *scratch;
    float sums[M][N][4];

    __device__ void copy(unsigned char *to, const T *row, uint i) {
        if constexpr (IN_RUNS) {
            cp_async_16(shared_address(to), row + (i < k ? i : 0), i < k);
        } else {
            Run<T, 8> run;
#pragma unroll
            for (uint j = 0; j < 8; j++) run.of[j] = i + j < k ? row[i + j] : narrow<T>(0.0f);
            put<T, 8>(reinterpret_cast<T *>(to), run);
        }
    }

    // Beyond k both sides are zeros.
    __device__ void fill(uint step) {
        unsigned char *stage = scratch + step % STAGES * STAGE;
        const uint own = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS, i = step * DEPTH + chunk * (DEPTH / CHUNKS);
#pragma unroll
        for (uint r = 0; r < TALL / AT_ONCE; r++) copy(stage + chunk_at(r * AT_ONCE + own, chunk), x + size_t(x_rows[r]) * x_step, i);
        stage += TALL * ROW;
#pragma unroll
        for (uint r = 0; r < WIDE / AT_ONCE; r++) copy(stage + chunk_at(r * AT_ONCE + own, chunk), w + size_t(w_rows[r]) * k, i);
    }

    __device__ void run() {
        const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, steps = (k + DEPTH - 1) / DEPTH;
        const uint x_first = warp / ACROSS * 16 * M + lane % 16, w_first = warp % ACROSS * 8 * N + lane / 16 * 8 + lane % 8;
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) sums[i][j][c] = 0.0f;
#pragma unroll
        for (uint s = 0; s < STAGES - 1; s++) {
            if (s < steps) fill(s);
            cp_async_commit();
        }
        for (uint step = 0; step < steps; step++) {
            cp_async_wait<STAGES - 2>();
            __syncthreads(); // this step has arrived for all threads, and the previous one has been read
            if (step + STAGES - 1 < steps) fill(step + STAGES - 1);
            cp_async_commit();
            const uint of_x = shared_address(scratch) + step % STAGES * STAGE, of_w = of_x + TALL * ROW;
#pragma unroll
            for (uint chunk = 0; chunk < CHUNKS; chunk += 2) {
                uint a[M][4];
#pragma unroll
                for (int i = 0; i < M; i++) ldmatrix_x4(a[i], of_x + chunk_at(x_first + 16 * i, chunk + lane / 16));
#pragma unroll
                for (int j = 0; j < N; j += 2) {
                    uint b[4];
                    ldmatrix_x4(b, of_w + chunk_at(w_first + 8 * j, chunk + lane / 8 % 2));
#pragma unroll
                    for (int i = 0; i < M; i++) {
                        mma<T>(sums[i][j], a[i], b[0], b[1]);
                        mma<T>(sums[i][j + 1], a[i], b[2], b[3]);
                    }
                }
            }
        }
    }
};

template <typename T, int UP, int M, int N, int STAGES, bool IN_RUNS>
__device__ void product(const T *x, const uint *starts, const uint *sorted, T *y, const Grouped &p,
    const Weights<T, MAX_EXPERTS> &weights) {
    using P = Product<T, UP, M, N, STAGES, IN_RUNS>;
    extern __shared__ __align__(128) unsigned char scratch[];
    Tile tile;
    if (!tile_of(tile, starts, blockIdx.x, P::TALL, p.experts)) return;
    P own;
    own.x = x;
    own.w = weights.of[tile.expert];
    own.k = p.k;
    own.x_step = p.step;
    own.scratch = scratch;
    const uint copied = threadIdx.x / CHUNKS;
#pragma unroll
    for (uint r = 0; r < P::TALL / AT_ONCE; r++) own.x_rows[r] = tile.row(r * AT_ONCE + copied, sorted, p);
    const uint width = p.is_gated ? P::WIDE / 2 : P::WIDE;
#pragma unroll
    for (uint r = 0; r < P::WIDE / AT_ONCE; r++) own.w_rows[r] = p.matrix_row(blockIdx.y * width, r * AT_ONCE + copied);
    own.run();

    // Through shared memory, so that whole cache lines are written; consecutive rows there are
    // eight banks apart.
    constexpr uint STRIP = P::WIDE + 8;
    static_assert(P::TALL * STRIP * sizeof(float) <= STAGES * P::STAGE);
    float *strips = reinterpret_cast<float *>(scratch);
    const uint warp = threadIdx.x / LANES;
    __syncthreads(); // the last step has been read
    put_fragments<STRIP>(strips, own.sums, warp / P::ACROSS * M, warp % P::ACROSS * N);
    __syncthreads();
    const uint tall = min(P::TALL, tile.end - tile.first);
    const bool in_twos = p.n % 2 == 0;
#pragma unroll 2
    for (uint at = threadIdx.x * 2; at < tall * width; at += 2 * WARPS * LANES) {
        const uint place = at / width, column = at % width, to = blockIdx.y * width + column;
        const float *strip = strips + place * STRIP + p.tile_column(column);
        Run<T, 2> run;
#pragma unroll
        for (uint c = 0; c < 2; c++) {
            const float v = activate(strip[c], p.activation);
            run.of[c] = narrow<T>(p.is_gated ? v * strip[c + 8] : v);
        }
        T *row = y + size_t(tile.target(place, sorted, p)) * p.n;
        if (in_twos && to < p.n) {
            put<T, 2>(row + to, run);
        } else {
            if (to < p.n) row[to] = run.of[0];
            if (to + 1 < p.n) row[to + 1] = run.of[1];
        }
    }
}

#define TILE(NAME, T, KIND, UP, M, N, STAGES, IN_RUNS) \
    extern "C" __global__ void __launch_bounds__(WARPS *LANES, 2) experts_tile_##KIND##_##NAME(const T *x, const uint *starts, \
        const uint *sorted, T *y, uint n, uint k, uint step, uint top, uint experts, uint activation, uint is_up, uint is_gated, \
        const __grid_constant__ Weights<T, MAX_EXPERTS> weights) { \
        grid_dependency_sync(); \
        product<T, UP, M, N, STAGES, IN_RUNS>( \
            x, starts, sorted, y, Grouped{n, k, step, top, experts, activation, is_up, is_gated}, weights); \
    }
// By tile height; 32 pairs where rows are not whole runs. The Rust launch sets the size of shared
// memory.
#define TILES(NAME, T) \
    TILE(NAME, T, 128, 2, 4, 8, 3, true) \
    TILE(NAME, T, 64, 1, 4, 4, 4, true) \
    TILE(NAME, T, 32, 1, 2, 4, 4, true) \
    TILE(NAME, T, unaligned, 1, 2, 4, 4, false)
TILES(f16, half_t)
TILES(bf16, bhalf_t)
