// DeBERTa's disentangled positions on tensor cores: q · key[δ] and k · query[δ] of every pair of 64
// rows and 64 keys of a block.
//
// The distance of row r and key c is r + 63 − c above that of the nearest pair, so a block has 127
// distances, and sixteen rows, or keys, have 79 of them. A warp multiplies its sixteen with the
// positions of those 79, little more work than the 64 keys; each pair then selects the product of
// its distance.
#pragma once
#include "attention/task.cuh"
#include "launch/cuda/mma.cuh"

constexpr uint DISTANCES = 128;
// Distances of sixteen vectors, in whole tiles, and the floats per row of their products: rows
// start in different banks.
constexpr uint BAND = 80;
constexpr uint BAND_PITCH = BAND + 4;

__device__ __forceinline__ uint position_row(int distance, const Shape &s, const uint *table) {
    // Distances of rows or keys beyond the last have no entry; their products are discarded.
    return table[s.distances + uint(min(max(distance + s.origin, 0), int(s.distance_count) - 1))];
}

// Products of sixteen vectors with the positions of a band, written to a tile.
template <typename T, uint D>
__device__ __forceinline__ void multiply_band(const uint m[D / 16][4], const T *band, float *tile) {
    const uint lane = threadIdx.x % LANES;
    const T *at = band + (lane / 16 * 8 + lane % 8) * (D + 8) + lane / 8 % 2 * 8;
#pragma unroll
    for (uint n = 0; n < BAND / 8; n += 2) {
        float x[2][4] = {};
#pragma unroll
        for (uint i = 0; i < D / 16; i++) {
            uint p[4];
            ldmatrix_x4(p, at + n * 8 * (D + 8) + i * 16);
            mma<T>(x[0], m[i], p[0], p[1]);
            mma<T>(x[1], m[i], p[2], p[3]);
        }
#pragma unroll
        for (uint h = 0; h < 4; h++) {
            float *to = tile + (lane / 4 + h % 2 * 8) * BAND_PITCH + (n + h / 2) * 8 + lane % 4 * 2;
            put<float, 2>(to, {x[h / 2][h % 2 * 2], x[h / 2][h % 2 * 2 + 1]});
        }
    }
}

// Content-to-position: adds the terms of a warp's own rows to its scores; `m` are its rows of q.
template <typename T, uint D>
__device__ __forceinline__ void add_content_to_position(float x[8][4], const uint m[D / 16][4], const T *positions, float *tiles) {
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    float *tile = tiles + warp * 16 * BAND_PITCH;
    __syncwarp(); // the previous tile has been read
    multiply_band<T, D>(m, positions + warp * 16 * (D + 8), tile);
    __syncwarp();
#pragma unroll
    for (uint n = 0; n < 8; n++) {
#pragma unroll
        for (uint e = 0; e < 4; e++) {
            const uint r = lane / 4 + e / 2 * 8, c = n * 8 + lane % 4 * 2 + e % 2;
            x[n][e] += tile[r * BAND_PITCH + r + 63 - c];
        }
    }
    __syncwarp(); // the tile has been read
}

// Position-to-content: each warp multiplies sixteen keys, for the scores of all warps. All warps
// call it.
template <typename T, uint D>
__device__ __forceinline__ void add_position_to_content(float x[8][4], const T *ks, const T *positions, float *tiles) {
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    uint m[D / 16][4];
#pragma unroll
    for (uint i = 0; i < D / 16; i++) {
        ldmatrix_x4(m[i], ks + (warp * 16 + lane % 16) * (D + 8) + lane / 16 * 8 + i * 16);
    }
    multiply_band<T, D>(m, positions + (48 - warp * 16) * (D + 8), tiles + warp * 16 * BAND_PITCH);
    __syncthreads();
#pragma unroll
    for (uint n = 0; n < 8; n++) {
#pragma unroll
        for (uint e = 0; e < 4; e++) {
            const uint r = warp * 16 + lane / 4 + e / 2 * 8, c = n * 8 + lane % 4 * 2 + e % 2;
            x[n][e] += tiles[c * BAND_PITCH + r + 15 - c % 16];
        }
    }
}
