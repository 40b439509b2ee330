// Grouped matrix products (GEMM) of many pairs of token and expert in 16-bit floats with matrices
// in GGUF block formats, as `../tile.cu` has them for floats: 128 inputs at a time, a tile of an
// expert's blocks is dequantized to 16-bit floats in shared memory beside one of its pairs, and the
// tensor cores multiply them with sums in f32. 128 inputs are the least in which every format has
// whole pairs of sixteens.
#pragma once
#include "experts/tile.cuh"
#include "launch/cuda/mma.cuh"
#include "quant/formats.cuh"

constexpr uint WARPS = 4, THREADS = WARPS * LANES;
constexpr uint DEPTH = 128;
// A row of DEPTH 16-bit floats, and its chunks, swizzled by the row's index: eight rows' chunks of
// one k are in different banks, as `ldmatrix` needs.
constexpr uint ROW = 2 * DEPTH, CHUNKS = ROW / 16;
__device__ __forceinline__ uint chunk_at(uint row, uint chunk) { return row * ROW + (chunk ^ (row % 8)) * 16; }

// Pairs and matrix rows of a tile. With few pairs, fragments without any are skipped.
constexpr uint TALL = 64, WIDE = 128;
constexpr int M = TALL / 16, N = WIDE / 8 / WARPS;

// A chunk of x, zeros beyond k.
template <typename T> __device__ __forceinline__ void copy_chunk(unsigned char *to, const T *row, uint i, uint k, bool in_runs) {
    Run<T, 8> run;
    if (i >= k) {
#pragma unroll
        for (int j = 0; j < 8; j++) run.of[j] = narrow<T>(0.0f);
    } else if (in_runs) {
        run = load<T, 8>(row + i);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++) run.of[j] = row[i + j];
    }
    put<T, 8>(reinterpret_cast<T *>(to), run);
}

// Sixteen weights as 16-bit floats, two chunks.
template <typename T>
__device__ __forceinline__ void open_sixteen(unsigned char *scratch, uint row, uint sixteen, uint4 codes, float scale, float minimum) {
    const uint words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (uint c = 0; c < 2; c++) {
        Run<T, 8> run;
#pragma unroll
        for (uint j = 0; j < 8; j++) {
            run.of[j] = narrow<T>(fmaf(scale, float(int8_t(byte_of(words[2 * c + j / 4], j % 4))), minimum));
        }
        put<T, 8>(reinterpret_cast<T *>(scratch + chunk_at(row, 2 * sixteen + c)), run);
    }
}

template <typename T, typename F>
__device__ void product(const T *x, const uint *starts, const uint *sorted, const uint16_t *grid, T *y, const Grouped &p, uint bytes,
    bool in_runs, const Weights<uint8_t, MAX_EXPERTS> &weights) {
    __shared__ __align__(128) unsigned char scratch[(TALL + WIDE) * ROW];
    Tile tile;
    if (!tile_of(tile, starts, blockIdx.x, TALL, p.experts)) return;
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const uint tall = min(TALL, tile.end - tile.first), width = p.is_gated ? WIDE / 2 : WIDE;
    const uint8_t *w = weights.of[tile.expert];
    unsigned char *of_w = scratch + TALL * ROW;
    const uint x_at = shared_address(scratch), w_at = shared_address(of_w);
    const uint w_first = warp * 8 * N + lane / 16 * 8 + lane % 8;
    float sums[M][N][4] = {};
    for (uint step = 0; step * DEPTH < p.k; step++) {
        __syncthreads(); // the previous tiles have been read
#pragma unroll 2
        for (uint i = threadIdx.x; i < WIDE * (DEPTH / 32); i += THREADS) {
            const uint row = i / (DEPTH / 32), at = step * (DEPTH / 32) + i % (DEPTH / 32);
            const uint from = p.matrix_row(blockIdx.y * width, row);
            // Beyond the last pair of a row is that one again, with weight zero.
            const bool is_there = at < p.k / 32;
            const uint given = is_there ? at : p.k / 32 - 1;
            const Pair pair = F::pair(w + size_t(from) * bytes + size_t(given / F::PAIRS) * F::BYTES, grid, given % F::PAIRS);
            const uint sixteen = at / F::PAIRS * (2 * F::PAIRS) + F::first(at % F::PAIRS) - step * (DEPTH / 16);
#pragma unroll
            for (uint h = 0; h < 2; h++) {
                open_sixteen<T>(of_w, row, sixteen + h * F::APART, pair.q[h], is_there ? pair.scale[h] : 0.0f,
                    is_there ? pair.minimum[h] : 0.0f);
            }
        }
        // Fragments with a pair have sixteen rows; rows beyond the last repeat it.
        for (uint i = threadIdx.x; i < (tall + 15) / 16 * 16 * CHUNKS; i += THREADS) {
            const uint row = i / CHUNKS, chunk = i % CHUNKS;
            const T *from = x + size_t(tile.row(row, sorted, p)) * p.step;
            copy_chunk<T>(scratch + chunk_at(row, chunk), from, step * DEPTH + chunk * 8, p.k, in_runs);
        }
        __syncthreads();
#pragma unroll 2
        for (uint chunk = 0; chunk < CHUNKS; chunk += 2) {
            uint b[N / 2][4];
#pragma unroll
            for (int j = 0; j < N / 2; j++) ldmatrix_x4(b[j], w_at + chunk_at(w_first + 16 * j, chunk + lane / 8 % 2));
#pragma unroll
            for (int i = 0; i < M; i++) {
                if (16 * uint(i) >= tall) continue; // uniform for the whole block
                uint a[4];
                ldmatrix_x4(a, x_at + chunk_at(16 * i + lane % 16, chunk + lane / 16));
#pragma unroll
                for (int j = 0; j < N; j++) mma<T>(sums[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }

    // Through shared memory, so that whole cache lines are written and a thread has both factors of
    // a gated result.
    constexpr uint STRIP = WIDE + 8;
    static_assert(TALL * STRIP * sizeof(float) <= sizeof(scratch));
    float *strips = reinterpret_cast<float *>(scratch);
    __syncthreads(); // the last step has been read
    put_fragments<STRIP>(strips, sums, 0, warp * N);
    __syncthreads();
    for (uint i = threadIdx.x; i < tall * width; i += THREADS) {
        const uint place = i / width, column = i % width, to = blockIdx.y * width + column;
        if (to >= p.n) continue;
        const float *strip = strips + place * STRIP + p.tile_column(column);
        const float v = activate(strip[0], p.activation);
        y[size_t(tile.target(place, sorted, p)) * p.n + to] = narrow<T>(p.is_gated ? v * strip[8] : v);
    }
}

#define TILE(NAME, F, DTYPE, T) \
    extern "C" __global__ void __launch_bounds__(THREADS, 3) experts_tile_##NAME##_##DTYPE(const T *x, const uint *starts, \
        const uint *sorted, T *y, uint n, uint k, uint step, uint top, uint experts, uint activation, uint is_up, uint is_gated, \
        IN_BLOCKS) { \
        grid_dependency_sync(); \
        product<T, F>(x, starts, sorted, grid, y, Grouped{n, k, step, top, experts, activation, is_up, is_gated}, bytes, in_runs != 0, \
            weights); \
    }
#define TILES(NAME, F) TILE(NAME, F, f16, half_t) TILE(NAME, F, bf16, bhalf_t)
