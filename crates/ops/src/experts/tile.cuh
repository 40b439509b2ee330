// Tiles of the products of many pairs of token and expert: which pairs and matrix rows belong to a
// tile, and how its sums leave the tensor cores.
#pragma once
#include "experts/weights.cuh"

struct Grouped {
    // Outputs, without those of a gate.
    uint n, k;
    // Elements from one row of x to the next.
    uint step;
    uint top, experts, activation;
    // Up reads the rows of the pairs' tokens and writes in sorted order; down reads that order and
    // writes each pair's row where the sum over its token expects it.
    uint is_up, is_gated;

    // For tiles in fragments that begin at column `first` of y: the matrix row of the tile's `row`,
    // and where in the tile a column of y is. With a gate, every other fragment of eight rows is
    // the up projection, so that a thread has both factors of its results. Rows beyond the
    // last repeat it.
    __device__ uint matrix_row(uint first, uint row) const {
        const uint column = first + (is_gated ? row / 16 * 8 + row % 8 : row);
        return min(column, n - 1) + (is_gated && row / 8 % 2 == 1 ? n : 0);
    }
    __device__ uint tile_column(uint column) const { return is_gated ? column / 8 * 16 + column % 8 : column; }
};

// The pairs of a tile, from `first` to at most `end` in sorted order, and their expert.
struct Tile {
    uint expert, first, end;

    // The row of x of this pair. Pairs beyond the last repeat it.
    __device__ uint row(uint place, const uint *sorted, const Grouped &p) const {
        place = min(first + place, end - 1);
        return p.is_up ? sorted[place] / p.top : place;
    }
    // The row of y.
    __device__ uint target(uint place, const uint *sorted, const Grouped &p) const {
        return p.is_up ? first + place : sorted[first + place];
    }
};

// Finds the tile of this index, of `tall` pairs. The grid may have more blocks than there are
// tiles: for these it returns false.
__device__ __forceinline__ bool tile_of(Tile &tile, const uint *starts, uint number, uint tall, uint experts) {
    const uint lane = threadIdx.x % LANES;
    for (uint base = 0; base < experts; base += LANES) {
        const uint from = starts[min(base + lane, experts)], to = starts[min(base + lane + 1, experts)];
        const uint own = (to - from + tall - 1) / tall;
        uint all = own; // of the lanes up to this one
#pragma unroll
        for (int step = 1; step < int(LANES); step *= 2) {
            const uint below = __shfl_up_sync(ALL_LANES, all, step);
            if (lane >= uint(step)) all += below;
        }
        const uint there = __ballot_sync(ALL_LANES, number < all);
        if (there) {
            const int at = __ffs(int(there)) - 1;
            tile.expert = base + at;
            tile.first = __shfl_sync(ALL_LANES, from, at) + (number - __shfl_sync(ALL_LANES, all - own, at)) * tall;
            tile.end = __shfl_sync(ALL_LANES, to, at);
            return true;
        }
        number -= __shfl_sync(ALL_LANES, all, LANES - 1);
    }
    return false;
}

// Writes sums of M by N fragments, with `down` fragments above and `across` to the left of them in
// the tile, to rows in shared memory that are STRIP floats apart.
template <uint STRIP, int M, int N>
__device__ __forceinline__ void put_fragments(float *strips, const float (&sums)[M][N][4], uint down, uint across) {
    const uint lane = threadIdx.x % LANES;
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            const uint row = (down + i) * 16 + lane / 4, column = (across + j) * 8 + lane % 4 * 2;
            put<float, 2>(strips + row * STRIP + column, {sums[i][j][0], sums[i][j][1]});
            put<float, 2>(strips + (row + 8) * STRIP + column, {sums[i][j][2], sums[i][j][3]});
        }
    }
}
