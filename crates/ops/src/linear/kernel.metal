// Matrix products (GEMM; GEMV for one row), y = act(x·Wᵀ + b) + residual for W in rows of the
// activations' dtype. Products and sums in f32, one rounding.

// Up to M rows of x. Each SIMD-group computes four columns of all of them, and reads its four rows
// of W once.
template <typename T, int M>
[[kernel]] void linear_gemv(device const T *x [[buffer(0)]], device const T *w [[buffer(1)]],
    device const T *bias [[buffer(2)]], device const T *residual [[buffer(3)]], device T *y [[buffer(4)]],
    constant Product &p [[buffer(5)]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
    uint first = (group * simds + simd) * 4;
    if (first >= p.n) {
        return;
    }
    Rows<T, M> xs;
    Rows<T, 4> ws;
    for (int m = 0; m < M; m++) {
        xs.at[m] = x + ulong(min(uint(m), p.rows - 1)) * ulong(p.x_stride);
    }
    for (int r = 0; r < 4; r++) {
        ws.at[r] = w + ulong(min(first + uint(r), p.n - 1)) * ulong(p.k);
    }
    Dots<4, M> dots;
    dot_rows<T, T, 4, M>(dots, ws, xs, p.k, FOURS, lane);
    // One lane per result.
    float v = 0.0f;
    for (int m = 0; m < M; m++) {
        for (int r = 0; r < 4; r++) {
            v = lane == uint(4 * m + r) ? dots.of[r][m] : v;
        }
    }
    uint row = lane / 4;
    uint column = first + lane % 4;
    if (row < min(uint(M), p.rows) && column < p.n) {
        finish<T>(v, row, column, bias, residual, y, p);
    }
}
#define GEMV(M) \
KERNEL("linear_gemv" #M "_f32", linear_gemv<float, M>) \
KERNEL("linear_gemv" #M "_f16", linear_gemv<half, M>) \
KERNEL("linear_gemv" #M "_bf16", linear_gemv<bfloat, M>)
GEMV(1)
GEMV(2)
GEMV(4)
GEMV(8)

// Tiles of 16·M rows and 16·N columns. The grid runs through bands of four tiles of columns before
// the next tile of rows: neighbours share rows of x, and those that follow share rows of W.
constant uint BAND = 4;
template <typename T, int M, int N>
[[kernel]] void linear_tile(device const T *x [[buffer(0)]], device const T *w [[buffer(1)]],
    device const T *bias [[buffer(2)]], device const T *residual [[buffer(3)]], device T *y [[buffer(4)]],
    constant Product &p [[buffer(5)]], uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float4 scratch[TILE_SCRATCH(M, N)];
    uint first_row = group.x / BAND * uint(16 * M);
    uint first_column = (group.y * BAND + group.x % BAND) * uint(16 * N);
    if (first_column >= p.n) {
        return;
    }
    TILE_ROWS(T, M) xs;
    TILE_ROWS(T, N) ws;
    tile_rows<T, M>(xs, x, first_row, p.rows, p.x_stride, tid);
    tile_rows<T, N>(ws, w, first_column, p.n, p.k, tid);
    Sums<M, N> sums;
    tile_product<T, M, N>(sums, xs, ws, p.k, FOURS, scratch, tid, simd);
    finish_tile<T, M, N>(sums, first_row, first_column, bias, residual, y, p, scratch, lane, simd);
}
#define TILES(NAME, M, N) \
KERNEL("linear_tile" NAME "_f32", linear_tile<float, M, N>) \
KERNEL("linear_tile" NAME "_f16", linear_tile<half, M, N>) \
KERNEL("linear_tile" NAME "_bf16", linear_tile<bfloat, M, N>)
TILES("64x64", 4, 4)
TILES("64x32", 4, 2)
TILES("32x32", 2, 2)
