// Matrix products (GEMM; GEMV for one row) with W in a block format: few rows of x by SIMD-groups
// that go along rows of W, many rows by tiles.

// Four elements of x.
template <typename T>
METAL_FUNC vec<T, 4> four_of(device const T *x, bool fours) {
    if (fours) {
        return *(device const vec<T, 4> *)x;
    }
    return vec<T, 4>(x[0], x[1], x[2], x[3]);
}

// Outputs per SIMD-group in products of few rows: each value of x that is read serves all of them.
#define OUTPUTS 2

// Adds sixteen elements of x times the weights of each output. The codes are multiplied first,
// scale and minimum applied once for all sixteen. Codes of an output are 32 apart, scales two.
template <typename T, int M>
METAL_FUNC void dot_sixteen(thread Dots<OUTPUTS, M> &dots, int m, device const T *x, thread const half *q,
    thread const float2 *scales, bool fours) {
    float v[16];
    float total = 0.0f;
    #pragma unroll
    for (uint i = 0; i < 16; i += 4) {
        vec<T, 4> four = four_of<T>(x + i, fours);
        #pragma unroll
        for (uint j = 0; j < 4; j++) {
            v[i + j] = float(four[j]);
            total += v[i + j];
        }
    }
    #pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
        float dot = 0.0f;
        #pragma unroll
        for (uint i = 0; i < 16; i++) {
            dot = fma(v[i], float(q[32 * o + int(i)]), dot);
        }
        dots.of[o][m] += fma(scales[2 * o].x, dot, scales[2 * o].y * total);
    }
}

// The sums of rows of W with the first `rows` of M rows of x, by one SIMD-group, for every lane.
// Lanes take turns in the units of 32 inputs, so that the blocks are read once, by coalesced loads.
template <typename T, typename F, int M>
METAL_FUNC void block_dots(thread Dots<OUTPUTS, M> &dots, thread const Rows<uchar, OUTPUTS> &w, constant ushort *grid,
    thread const Rows<T, M> &x, uint rows, uint k, bool fours, uint lane) {
    for (int o = 0; o < OUTPUTS; o++) {
        for (int m = 0; m < M; m++) {
            dots.of[o][m] = 0.0f;
        }
    }
    for (uint unit = lane; unit < k / 32; unit += LANES) {
        half q[OUTPUTS * 32];
        float2 scales[OUTPUTS * 2];
        #pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            device const uchar *b = w.at[o] + unit / uint(F::UNITS) * uint(F::BYTES);
            #pragma unroll
            for (uint h = 0; h < 2; h++) {
                scales[2 * o + int(h)] = codes(F(), b, grid, unit % uint(F::UNITS), h, q + 32 * o + 16 * int(h));
            }
        }
        #pragma unroll
        for (int m = 0; m < M; m++) {
            if (M == 1 || uint(m) < rows) {
                #pragma unroll
                for (uint h = 0; h < 2; h++) {
                    dot_sixteen<T, M>(dots, m, x.at[m] + unit * 32 + 16 * h, q + 16 * h, scales + h, fours);
                }
            }
        }
    }
    #pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
        #pragma unroll
        for (int m = 0; m < M; m++) {
            dots.of[o][m] = simd_sum(dots.of[o][m]);
        }
    }
}

// Tiles of 32 rows and 64 outputs, 32 inputs at a time. They are stored in threadgroup memory in S:
// the type of the activations, except that bf16 becomes float, so that 8-bit weights stay exact.
#define BLOCK_TALL 2
#define BLOCK_WIDE 4
#define BLOCK_DEEP 32
#define BLOCK_SCRATCH(S) (16 * (BLOCK_TALL + BLOCK_WIDE) * (BLOCK_DEEP * sizeof(S) + 16) / 16)
typedef Sums<BLOCK_TALL, BLOCK_WIDE> BlockSums;

// The row of x and the row of W that a thread fetches: eight elements of the former, sixteen of the
// latter.
METAL_FUNC uint block_row(uint tid) {
    return tid / 4;
}
METAL_FUNC uint block_output(uint tid) {
    return tid / 2;
}

// The sums of a tile; each thread gets its row of x and its row of W. Every thread of the
// threadgroup takes part; the threadgroup memory is free before and after.
template <typename T, typename S, typename F>
METAL_FUNC void block_product(thread BlockSums &sums, device const T *x, device const uchar *w, constant ushort *grid,
    uint k, bool fours, threadgroup float4 *scratch, uint tid, uint simd) {
    threadgroup S *xs = (threadgroup S *)scratch;
    threadgroup S *ws = xs + uint(16 * BLOCK_TALL) * TILE_STRIDE(S, BLOCK_DEEP);
    uint column = tid % 4 * 8;
    uint upper = tid % 2;
    threadgroup S *to_x = xs + block_row(tid) * TILE_STRIDE(S, BLOCK_DEEP) + column;
    threadgroup S *to_w = ws + block_output(tid) * TILE_STRIDE(S, BLOCK_DEEP) + 16 * upper;
    tile_begin<BLOCK_TALL, BLOCK_WIDE>(sums);
    for (uint unit = 0; unit < k / 32; unit++) {
        half q[16];
        device const uchar *b = w + unit / uint(F::UNITS) * uint(F::BYTES);
        float2 scale = codes(F(), b, grid, unit % uint(F::UNITS), upper, q);
        vec<T, 4> low = four_of<T>(x + unit * BLOCK_DEEP + column, fours);
        vec<T, 4> high = four_of<T>(x + unit * BLOCK_DEEP + column + 4, fours);
        threadgroup_barrier(mem_flags::mem_threadgroup); // the tiles before have been read
        #pragma unroll
        for (uint i = 0; i < 16; i++) {
            to_w[i] = S(fma(scale.x, float(q[i]), scale.y));
        }
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            to_x[i] = S(low[i]);
            to_x[4 + i] = S(high[i]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        tile_step<S, BLOCK_TALL, BLOCK_WIDE, BLOCK_DEEP>(sums, xs, ws, simd);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup); // the last tiles have been read
}

