// Shared by both products of the experts, for all weight formats: which expert, which rows, and
// where results go.

constant bool FOURS [[function_constant(0)]];
// For products: whether it is the up projection, and then whether gates precede its rows.
constant bool UP [[function_constant(1)]];
constant bool GATED [[function_constant(2)]];
constant ushort ACTIVATION [[function_constant(3)]];
// For the sum over a token's pairs.
constant bool HAS_BIAS [[function_constant(4)]];
constant bool HAS_RESIDUAL [[function_constant(5)]];

struct Grouped {
    // Outputs, without those of a gate.
    uint n;
    uint k;
    // Elements from one row of x to the next.
    uint stride;
    uint top;
    // The first expert of this dispatch, and their number.
    uint first_expert;
    uint experts;
    // Bytes of a row of quantized weights.
    uint bytes;
};

// Weights of up to 16 experts, each a tensor of its own.
#define WEIGHTS(T) \
device const T *w0 [[buffer(5)]], device const T *w1 [[buffer(6)]], device const T *w2 [[buffer(7)]], \
device const T *w3 [[buffer(8)]], device const T *w4 [[buffer(9)]], device const T *w5 [[buffer(10)]], \
device const T *w6 [[buffer(11)]], device const T *w7 [[buffer(12)]], device const T *w8 [[buffer(13)]], \
device const T *w9 [[buffer(14)]], device const T *w10 [[buffer(15)]], device const T *w11 [[buffer(16)]], \
device const T *w12 [[buffer(17)]], device const T *w13 [[buffer(18)]], device const T *w14 [[buffer(19)]], \
device const T *w15 [[buffer(20)]]
// The weights of expert `first_expert + E`.
#define WEIGHT(E) \
((E) < 8 ? ((E) < 4 ? ((E) < 2 ? ((E) == 0 ? w0 : w1) : ((E) == 2 ? w2 : w3)) \
                    : ((E) < 6 ? ((E) == 4 ? w4 : w5) : ((E) == 6 ? w6 : w7))) \
         : ((E) < 12 ? ((E) < 10 ? ((E) == 8 ? w8 : w9) : ((E) == 10 ? w10 : w11)) \
                     : ((E) < 14 ? ((E) == 12 ? w12 : w13) : ((E) == 14 ? w14 : w15))))

// R results of one pair from `first` on, in the row at `y`.
template <typename T, int R>
METAL_FUNC void write_gemv(thread const Dots<R, 1> &dots, thread const Dots<R, 1> &gated, device T *y, uint first,
    constant Grouped &p, uint lane) {
    float v = 0.0f;
    for (int r = 0; r < R; r++) {
        float result = activate(dots.of[r][0], ACTIVATION);
        if (GATED) {
            result *= gated.of[r][0];
        }
        v = lane == uint(r) ? result : v;
    }
    if (lane < uint(R) && first + lane < p.n) {
        y[first + lane] = T(v);
    }
}

// The expert of a tile of 16·M pairs, and its pairs in sorted order, from `first` to at most `end`.
// The grid may have more tiles than there are: then it returns `p.experts`, and there is nothing to
// do.
template <int M>
METAL_FUNC uint tile_expert(device const uint *starts, constant Grouped &p, uint tile, thread uint &first, thread uint &end) {
    uint e = 0;
    for (; e < p.experts; e++) {
        first = starts[p.first_expert + e];
        end = starts[p.first_expert + e + 1];
        uint tiles = (end - first + uint(16 * M) - 1) / uint(16 * M);
        if (tile < tiles) {
            break;
        }
        tile -= tiles;
    }
    first += tile * uint(16 * M);
    return e;
}

// The row of x at this index of the sorted order; indices beyond the last repeat it. Up reads the
// rows of the pairs' tokens, down those that up wrote in sorted order.
METAL_FUNC uint tile_token(uint place, uint end, device const uint *sorted, constant Grouped &p) {
    place = min(place, end - 1);
    return UP ? sorted[place] / p.top : place;
}

// Columns that a SIMD-group computes. With a gate, half of what it multiplies are gates and half up
// projections.
template <int N>
METAL_FUNC uint tile_width() {
    return uint(GATED ? 4 * N : 8 * N);
}

// The weights' row of the tile's row, in the `block`-th tile along the columns.
template <int N>
METAL_FUNC uint tile_output(uint row, uint block, constant Grouped &p) {
    uint width = tile_width<N>();
    uint own = row % uint(8 * N);
    uint column = block * 2 * width + row / uint(8 * N) * width + own % width;
    return own / width * p.n + min(column, p.n - 1);
}

// Up writes in sorted order; down writes each pair's row where the sum over its token expects it.
template <typename T, int M, int N>
METAL_FUNC void put_tile(thread const Sums<M, N> &sums, uint first, uint end, uint block, device const uint *sorted,
    device T *y, constant Grouped &p, threadgroup float4 *scratch, uint lane, uint simd) {
    uint width = tile_width<N>();
    first += simd / 2 * uint(8 * M);
    uint first_column = (block * 2 + simd % 2) * width;
    #pragma unroll
    for (int i = 0; i < M; i++) {
        threadgroup const float *strip = tile_strip<M, N>(sums, i, scratch, simd);
        for (uint at = lane; at < 8 * width; at += LANES) {
            uint r = at / width;
            uint place = first + uint(8 * i) + r;
            uint column = first_column + at % width;
            if (place < end && column < p.n) {
                float v = activate(strip[r * TILE_STRIP(N) + at % width], ACTIVATION);
                if (GATED) {
                    v *= strip[r * TILE_STRIP(N) + width + at % width];
                }
                y[ulong(UP ? place : sorted[place]) * ulong(p.n) + ulong(column)] = T(v);
            }
        }
    }
}

