// behind ../linear/product.metal
// Matrix products (GEMM; GEMV for one row) with weights in a block format, y = act(x · Wᵀ + b) +
// residual, and embedding lookups. Sums in f32, one rounding.

// Products of up to R rows.
template <typename T, typename F, int R>
[[kernel]] void quant_gemv(device const T *x [[buffer(0)]], device const uchar *w [[buffer(1)]],
    constant ushort *grid [[buffer(2)]], device const T *bias [[buffer(3)]], device const T *residual [[buffer(4)]],
    device T *y [[buffer(5)]], constant Product &p [[buffer(6)]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
    uint first = (group * simds + simd) * OUTPUTS;
    if (first >= p.n) {
        return;
    }
    // Outputs or rows beyond the last repeat it, and are not stored.
    Rows<T, R> xs;
    Rows<uchar, OUTPUTS> ws;
    for (int r = 0; r < R; r++) {
        xs.at[r] = x + ulong(min(uint(r), p.rows - 1)) * ulong(p.x_stride);
    }
    for (int o = 0; o < OUTPUTS; o++) {
        ws.at[o] = w + ulong(min(first + uint(o), p.n - 1)) * ulong(p.bytes);
    }
    Dots<OUTPUTS, R> dots;
    block_dots<T, F, R>(dots, ws, grid, xs, p.rows, p.k, FOURS, lane);
    // One lane per result.
    float v = 0.0f;
    for (int r = 0; r < R; r++) {
        for (int o = 0; o < OUTPUTS; o++) {
            v = lane == uint(OUTPUTS * r + o) ? dots.of[o][r] : v;
        }
    }
    uint row = lane / OUTPUTS;
    uint column = first + lane % OUTPUTS;
    if (row < min(uint(R), p.rows) && column < p.n) {
        finish<T>(v, row, column, bias, residual, y, p);
    }
}
#define GEMV(R, NAME, F) \
KERNEL("quant_gemv" #R "_" NAME "_f32", quant_gemv<float, F, R>) \
KERNEL("quant_gemv" #R "_" NAME "_f16", quant_gemv<half, F, R>) \
KERNEL("quant_gemv" #R "_" NAME "_bf16", quant_gemv<bfloat, F, R>)

// Products of many rows.
template <typename T, typename S, typename F>
[[kernel]] void quant_gemm(device const T *x [[buffer(0)]], device const uchar *w [[buffer(1)]],
    constant ushort *grid [[buffer(2)]], device const T *bias [[buffer(3)]], device const T *residual [[buffer(4)]],
    device T *y [[buffer(5)]], constant Product &p [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float4 scratch[BLOCK_SCRATCH(S)];
    uint first_row = group.x * uint(16 * BLOCK_TALL);
    uint first_column = group.y * uint(16 * BLOCK_WIDE);
    // Rows or outputs beyond the last repeat it, and their sums are not stored.
    device const T *xs = x + ulong(min(first_row + block_row(tid), p.rows - 1)) * ulong(p.x_stride);
    device const uchar *ws = w + ulong(min(first_column + block_output(tid), p.n - 1)) * ulong(p.bytes);
    BlockSums sums;
    block_product<T, S, F>(sums, xs, ws, grid, p.k, FOURS, scratch, tid, simd);
    finish_tile<T, BLOCK_TALL, BLOCK_WIDE>(sums, first_row, first_column, bias, residual, y, p, scratch, lane, simd);
}
#define GEMM(NAME, F) \
KERNEL("quant_gemm_" NAME "_f32", quant_gemm<float, float, F>) \
KERNEL("quant_gemm_" NAME "_f16", quant_gemm<half, half, F>) \
KERNEL("quant_gemm_" NAME "_bf16", quant_gemm<bfloat, float, F>)

struct Lookup {
    // Groups of sixteen elements in all, and per row.
    uint parts;
    uint parts_of_row;
    uint bytes;
    // Elements from one row of the table to the next.
    uint table;
    // Rows of W and of the table: an id beyond them, which is invalid, reads the last row.
    uint rows;
    uint places;
    float scale;
};

// Embedding lookup: y[t] = scale · W[ids[t]] + table[places[t]], a thread per sixteen elements.
// HAS_RESIDUAL: whether there is a table.
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
    device const uchar *b = w + ulong(min(ids[token], p.rows - 1)) * ulong(p.bytes) + ulong(unit / uint(F::UNITS) * uint(F::BYTES));
    float2 scale = codes(F(), b, grid, unit % uint(F::UNITS), part % 2, q);
    y += ulong(i) * 16;
    if (HAS_RESIDUAL) {
        table += ulong(min(places[token], p.places - 1)) * ulong(p.table) + ulong(part * 16);
    }
    for (uint j = 0; j < 16; j++) {
        float v = fma(scale.x, float(q[j]), scale.y) * p.scale;
        if (HAS_RESIDUAL) {
            v += float(table[j]);
        }
        y[j] = T(v);
    }
}
#define LOOKUP(NAME, F) \
KERNEL("quant_rows_" NAME "_f32", quant_rows<float, F>) \
KERNEL("quant_rows_" NAME "_f16", quant_rows<half, F>) \
KERNEL("quant_rows_" NAME "_bf16", quant_rows<bfloat, F>)

#define EVERY(NAME, F) \
GEMV(1, NAME, F) \
GEMV(8, NAME, F) \
GEMM(NAME, F) \
LOOKUP(NAME, F)
EVERY_FORMAT(EVERY)
