
// Products with a weight in blocks, y = act(x · Wᵀ + b) + residual, and rows of it as those of a word table. Sums in f32, one rounding.

constant bool HAS_BIAS [[function_constant(0)]];
constant bool HAS_RESIDUAL [[function_constant(1)]];
constant ushort ACTIVATION [[function_constant(2)]];
// Whether every row of x begins where four elements may be read at once.
constant bool FOURS [[function_constant(3)]];

struct Part {
    // Rows of x, the part's outputs, units of 32 inputs, and bytes of a row of blocks.
    uint rows;
    uint n;
    uint units;
    uint bytes;
    // Elements from one row to the next, of x, of the residual and of y; and where the part's columns begin in the latter two.
    uint x;
    uint residual;
    uint y;
    uint first;
};

// Bias, activation, residual and the one rounding.
template <typename T>
METAL_FUNC void finish(float v, uint row, uint column, device const T *bias, device const T *residual, device T *y,
    constant Part &p) {
    column += p.first;
    if (HAS_BIAS) {
        v += float(bias[column]);
    }
    v = activate(v, ACTIVATION);
    if (HAS_RESIDUAL) {
        v += float(residual[ulong(row) * ulong(p.residual) + ulong(column)]);
    }
    y[ulong(row) * ulong(p.y) + ulong(column)] = T(v);
}

// Four elements of x.
template <typename T>
METAL_FUNC vec<T, 4> four_of(device const T *x) {
    if (FOURS) {
        return *(device const vec<T, 4> *)x;
    }
    return vec<T, 4>(x[0], x[1], x[2], x[3]);
}

// Outputs of a SIMD-group in products of few rows: each value of x that is read serves all of them.
#define OUTPUTS 2

// Adds sixteen elements of x times the weights of each output, whose codes are multiplied as they are: scale and least value come in
// once for all of them. Codes of an output are 32 apart, scales two.
template <typename T>
METAL_FUNC void dot_sixteen(device const T *x, thread const half *q, thread const float2 *scales, thread float *sums) {
    float v[16];
    float total = 0.0f;
    #pragma unroll
    for (uint i = 0; i < 16; i += 4) {
        vec<T, 4> four = four_of<T>(x + i);
        #pragma unroll
        for (uint j = 0; j < 4; j++) {
            v[i + j] = float(four[j]);
            total += v[i + j];
        }
    }
    #pragma unroll
    for (uint o = 0; o < OUTPUTS; o++) {
        float dot = 0.0f;
        #pragma unroll
        for (uint i = 0; i < 16; i++) {
            dot = fma(v[i], float(q[32 * o + i]), dot);
        }
        sums[o] += fma(scales[2 * o].x, dot, scales[2 * o].y * total);
    }
}

// Products of up to R rows. Lanes take turns in the units of 32 inputs, so that the blocks are read once and side by side.
template <typename T, typename F, uint R>
[[kernel]] void quant_few(device const T *x [[buffer(0)]], device const uchar *w [[buffer(1)]],
    constant ushort *grid [[buffer(2)]], device const T *bias [[buffer(3)]], device const T *residual [[buffer(4)]],
    device T *y [[buffer(5)]], constant Part &p [[buffer(6)]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
    uint first = (group * simds + simd) * OUTPUTS;
    if (first >= p.n) {
        return;
    }
    float sums[R * OUTPUTS];
    #pragma unroll
    for (uint i = 0; i < R * OUTPUTS; i++) {
        sums[i] = 0.0f;
    }
    for (uint unit = lane; unit < p.units; unit += LANES) {
        half q[OUTPUTS * 32];
        float2 scales[OUTPUTS * 2];
        #pragma unroll
        for (uint o = 0; o < OUTPUTS; o++) {
            // What lies beyond the last output is another of it, and is not written.
            device const uchar *b = w + ulong(min(first + o, p.n - 1)) * ulong(p.bytes);
            b += unit / uint(F::UNITS) * uint(F::BYTES);
            #pragma unroll
            for (uint h = 0; h < 2; h++) {
                scales[2 * o + h] = codes(F(), b, grid, unit % uint(F::UNITS), h, q + 32 * o + 16 * h);
            }
        }
        #pragma unroll
        for (uint r = 0; r < R; r++) {
            if (R == 1 || r < p.rows) {
                device const T *from = x + ulong(r) * ulong(p.x) + ulong(unit) * 32;
                #pragma unroll
                for (uint h = 0; h < 2; h++) {
                    dot_sixteen<T>(from + 16 * h, q + 16 * h, scales + h, sums + OUTPUTS * r);
                }
            }
        }
    }
    // A lane for each result.
    float mine = 0.0f;
    #pragma unroll
    for (uint i = 0; i < R * OUTPUTS; i++) {
        float total = simd_sum(sums[i]);
        mine = lane == i ? total : mine;
    }
    uint row = lane / OUTPUTS;
    uint column = first + lane % OUTPUTS;
    if (row < min(R, p.rows) && column < p.n) {
        finish<T>(mine, row, column, bias, residual, y, p);
    }
}

#define FEW(R, NAME, F) \
KERNEL("quant_few" #R "_" NAME "_f32", quant_few<float, F, R>) \
KERNEL("quant_few" #R "_" NAME "_f16", quant_few<half, F, R>) \
KERNEL("quant_few" #R "_" NAME "_bf16", quant_few<bfloat, F, R>)

// Products of many rows: 128 threads make 32 rows of 64 outputs, each SIMD-group 16 of 32. 32 inputs at a time wait in threadgroup
// memory in S, the weights turned: rows are apart by eight elements more than they hold, so that they lie in different banks.
// S is the type of the activations, except that bf16 becomes float, so that weights of eight bits stay what they are.
constant uint TALL = 32;
constant uint WIDE = 64;
constant uint DEEP = 32;
constant uint W_ROW = 72;
constant uint X_ROW = 40;

template <typename T, typename S, typename F>
[[kernel]] void quant_many(device const T *x [[buffer(0)]], device const uchar *w [[buffer(1)]],
    constant ushort *grid [[buffer(2)]], device const T *bias [[buffer(3)]], device const T *residual [[buffer(4)]],
    device T *y [[buffer(5)]], constant Part &p [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    // First both tiles, then the sums.
    threadgroup float room[sizeof(S) == 4 ? 32 * 72 + 32 * 40 : 32 * 72];
    threadgroup S *ws = (threadgroup S *)room;
    threadgroup S *xs = ws + DEEP * W_ROW;
    uint first_row = group.x * TALL;
    uint first_column = group.y * WIDE;
    // What a thread fetches: sixteen weights of one output, eight elements of one row. What lies beyond the last of either is another
    // of it, whose sums are not written.
    uint output = tid / 2;
    uint upper = tid % 2;
    device const uchar *blocks = w + ulong(min(first_column + output, p.n - 1)) * ulong(p.bytes);
    uint row = tid / 4;
    uint column = tid % 4 * 8;
    device const T *from = x + ulong(min(first_row + row, p.rows - 1)) * ulong(p.x) + ulong(column);
    uint own_row = simd / 2 * 16;
    uint own_column = simd % 2 * 32;
    simdgroup_matrix<float, 8, 8> sums[2][4];
    #pragma unroll
    for (uint i = 0; i < 2; i++) {
        #pragma unroll
        for (uint j = 0; j < 4; j++) {
            sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
    for (uint unit = 0; unit < p.units; unit++) {
        half q[16];
        device const uchar *b = blocks + unit / uint(F::UNITS) * uint(F::BYTES);
        float2 scale = codes(F(), b, grid, unit % uint(F::UNITS), upper, q);
        vec<T, 4> low = four_of<T>(from + unit * DEEP);
        vec<T, 4> high = four_of<T>(from + unit * DEEP + 4);
        threadgroup_barrier(mem_flags::mem_threadgroup); // the tiles before have been read
        #pragma unroll
        for (uint i = 0; i < 16; i++) {
            ws[(16 * upper + i) * W_ROW + output] = S(fma(scale.x, float(q[i]), scale.y));
        }
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            xs[row * X_ROW + column + i] = S(low[i]);
            xs[row * X_ROW + column + 4 + i] = S(high[i]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma unroll
        for (uint d = 0; d < DEEP; d += 8) {
            simdgroup_matrix<S, 8, 8> a[2];
            simdgroup_matrix<S, 8, 8> b[4];
            #pragma unroll
            for (uint i = 0; i < 2; i++) {
                simdgroup_load(a[i], xs + (own_row + 8 * i) * X_ROW + d, ulong(X_ROW));
            }
            #pragma unroll
            for (uint j = 0; j < 4; j++) {
                simdgroup_load(b[j], ws + d * W_ROW + own_column + 8 * j, ulong(W_ROW));
            }
            #pragma unroll
            for (uint i = 0; i < 2; i++) {
                #pragma unroll
                for (uint j = 0; j < 4; j++) {
                    simdgroup_multiply_accumulate(sums[i][j], a[i], b[j], sums[i][j]);
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup); // the last tiles have been read
    #pragma unroll
    for (uint i = 0; i < 2; i++) {
        #pragma unroll
        for (uint j = 0; j < 4; j++) {
            simdgroup_store(sums[i][j], room + (own_row + 8 * i) * W_ROW + own_column + 8 * j, ulong(W_ROW));
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < TALL * WIDE; i += 128) {
        uint r = i / WIDE;
        uint c = i % WIDE;
        if (first_row + r < p.rows && first_column + c < p.n) {
            finish<T>(room[r * W_ROW + c], first_row + r, first_column + c, bias, residual, y, p);
        }
    }
}
#define MANY(NAME, F) \
KERNEL("quant_many_" NAME "_f32", quant_many<float, float, F>) \
KERNEL("quant_many_" NAME "_f16", quant_many<half, half, F>) \
KERNEL("quant_many_" NAME "_bf16", quant_many<bfloat, float, F>)

struct Lookup {
    // Sixteens of elements in all, and in a row.
    uint parts;
    uint parts_of_row;
    uint bytes;
    uint table;
    float scale;
};

// y[t] = scale · W[ids[t]] + table[places[t]], a thread for sixteen elements. The table is there if there is a residual.
template <typename T, typename F>
[[kernel]] void quant_rows(device const uchar *w [[buffer(0)]], constant ushort *grid [[buffer(1)]],
    device const uint *ids [[buffer(2)]], device const T *table [[buffer(3)]], device const uint *places [[buffer(4)]],
    device T *y [[buffer(5)]], constant Lookup &p [[buffer(6)]], uint i [[thread_position_in_grid]]) {
    if (i >= p.parts) {
        return;
    }
    uint token = i / p.parts_of_row;
    uint part = i % p.parts_of_row;
    uint unit = part / 2;
    half q[16];
    device const uchar *b = w + ulong(ids[token]) * ulong(p.bytes) + ulong(unit / uint(F::UNITS) * uint(F::BYTES));
    float2 scale = codes(F(), b, grid, unit % uint(F::UNITS), part % 2, q);
    y += ulong(i) * 16;
    for (uint j = 0; j < 16; j++) {
        float v = fma(scale.x, float(q[j]), scale.y) * p.scale;
        if (HAS_RESIDUAL) {
            v += float(table[ulong(places[token]) * ulong(p.table) + ulong(part * 16 + j)]);
        }
        y[j] = T(v);
    }
}
#define LOOKUP(NAME, F) \
KERNEL("quant_rows_" NAME "_f32", quant_rows<float, F>) \
KERNEL("quant_rows_" NAME "_f16", quant_rows<half, F>) \
KERNEL("quant_rows_" NAME "_bf16", quant_rows<bfloat, F>)

#define EVERY(NAME, F) \
FEW(1, NAME, F) \
FEW(8, NAME, F) \
MANY(NAME, F) \
LOOKUP(NAME, F)
EVERY("q4_0", Q4_0)
EVERY("q4_1", Q4_1)
EVERY("q5_0", Q5_0)
EVERY("q5_1", Q5_1)
EVERY("q8_0", Q8_0)
EVERY("q2_k", Q2K)
EVERY("q3_k", Q3K)
EVERY("q4_k", Q4K)
EVERY("q5_k", Q5K)
EVERY("q6_k", Q6K)
EVERY("iq4_nl", IQ4NL)
EVERY("iq4_xs", IQ4XS)
EVERY("mxfp4", MXFP4)
EVERY("tq2_0", TQ2_0)
EVERY("tq1_0", TQ1_0)
EVERY("iq1_s", IQ1S)
EVERY("iq1_m", IQ1M)
EVERY("iq2_xxs", IQ2XXS)
EVERY("iq2_xs", IQ2XS)
EVERY("iq2_s", IQ2S)
EVERY("iq3_xxs", IQ3XXS)
EVERY("iq3_s", IQ3S)
