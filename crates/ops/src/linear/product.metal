// Epilogue and parameters of a matrix product (GEMM), y = act(x·Wᵀ + b) + residual, for any format
// of W.

constant bool HAS_BIAS [[function_constant(0)]];
constant bool HAS_RESIDUAL [[function_constant(1)]];
constant ushort ACTIVATION [[function_constant(2)]];
// Whether every row of x, and of W if it is in floats, is aligned for reads of four elements and
// has a multiple of four.
constant bool FOURS [[function_constant(3)]];

struct Product {
    uint rows;
    uint n;
    uint k;
    // Elements from one row to the next.
    uint x_stride;
    uint residual_stride;
    uint width;
    // The column of y, of the bias and of the residual that belongs to W's first row.
    uint first;
    // Bytes of a row of W, if it is in a block format.
    uint bytes;
};

// Epilogue of one sum.
template <typename T>
METAL_FUNC void finish(float v, uint row, uint column, device const T *bias, device const T *residual, device T *y,
    constant Product &p) {
    if (HAS_BIAS) {
        v += float(bias[p.first + column]);
    }
    v = activate(v, ACTIVATION);
    if (HAS_RESIDUAL) {
        v += float(residual[ulong(row) * ulong(p.residual_stride) + ulong(p.first + column)]);
    }
    y[ulong(row) * ulong(p.width) + ulong(p.first + column)] = T(v);
}

// Epilogue of all sums of a tile.
template <typename T, int M, int N>
METAL_FUNC void finish_tile(thread const Sums<M, N> &sums, uint first_row, uint first_column, device const T *bias,
    device const T *residual, device T *y, constant Product &p, threadgroup float4 *scratch, uint lane, uint simd) {
    first_row += simd / 2 * uint(8 * M);
    first_column += simd % 2 * uint(8 * N);
    #pragma unroll
    for (int i = 0; i < M; i++) {
        threadgroup const float *strip = tile_strip<M, N>(sums, i, scratch, simd);
        for (uint e = lane; e < uint(64 * N); e += LANES) {
            uint r = e / uint(8 * N);
            uint row = first_row + uint(8 * i) + r;
            uint column = first_column + e % uint(8 * N);
            if (row < p.rows && column < p.n) {
                finish<T>(strip[r * TILE_STRIP(N) + e % uint(8 * N)], row, column, bias, residual, y, p);
            }
        }
    }
}

