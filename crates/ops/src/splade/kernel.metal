// y = max or sum over a sequence's tokens of log(1 + max(x·Wᵀ + b, 0)), in f32. A threadgroup owns
// a block of the vocabulary for one sequence and loops over its tokens, tile by tile, so that no
// logit leaves the chip.

constant bool HAS_BIAS [[function_constant(0)]];
constant bool SUM [[function_constant(1)]];
// Whether the logarithm is taken twice.
constant bool TWICE [[function_constant(2)]];
// Whether every row of x and W is aligned to four elements and consists of whole fours, so that
// four are read at once.
constant bool FOURS [[function_constant(3)]];

struct Vocabulary {
    uint n;
    uint k;
    // Token stride in elements.
    uint stride;
};

// log(1 + x), exact to the last digits for small x too: the quotient restores what 1 + x rounds
// away.
METAL_FUNC float log_of_one_and(float x) {
    float u = 1.0f + x;
    return u == 1.0f || isinf(x) ? x : precise::log(u) * (x / (u - 1.0f));
}

// The weight of a logit. NaN stays NaN.
METAL_FUNC float weigh(float logit) {
    float weight = log_of_one_and(logit < 0.0f ? 0.0f : logit);
    return TWICE ? log_of_one_and(weight) : weight;
}

METAL_FUNC float together(float a, float b) {
    return SUM ? a + b : (b > a || isnan(b) ? b : a);
}

template <typename T, int M, int N>
[[kernel]] void splade_tile(device const T *x [[buffer(0)]], device const T *w [[buffer(1)]],
    device const T *bias [[buffer(2)]], device float *y [[buffer(3)]], constant uint *ranges [[buffer(4)]],
    constant Vocabulary &p [[buffer(5)]], uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float4 scratch[TILE_SCRATCH(M, N)];
    threadgroup float parts[TILE_THREADS];
    uint end = ranges[2 * group.x + 1];
    uint first_column = group.y * uint(16 * N);
    TILE_ROWS(T, N) ws;
    tile_rows<T, N>(ws, w, first_column, p.n, p.k, tid);
    // A lane stays with one column, and takes every row of it, or every other row if two lanes
    // share the column.
    uint own = lane % uint(8 * N);
    uint column = first_column + simd % 2 * uint(8 * N) + own;
    float b = HAS_BIAS ? float(bias[min(column, p.n - 1)]) : 0.0f;
    float so_far = SUM ? 0.0f : -INFINITY;
    for (uint first = ranges[2 * group.x]; first < end; first += uint(16 * M)) {
        TILE_ROWS(T, M) xs;
        tile_rows<T, M>(xs, x, first, end, p.stride, tid);
        Sums<M, N> sums;
        tile_product<T, M, N>(sums, xs, ws, p.k, FOURS, scratch, tid, simd);
        uint row = first + simd / 2 * uint(8 * M);
        #pragma unroll
        for (int i = 0; i < M; i++) {
            threadgroup const float *strip = tile_strip<M, N>(sums, i, scratch, simd);
            for (uint r = lane / uint(8 * N); r < 8; r += LANES / uint(8 * N)) {
                if (row + uint(8 * i) + r < end) {
                    float logit = strip[r * TILE_STRIP(N) + own] + b;
                    so_far = together(so_far, SUM ? weigh(logit) : logit);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup); // the strips have been read
    }
    parts[simd * LANES + lane] = so_far;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < uint(16 * N) && first_column + tid < p.n) {
        // The two SIMD-groups that had this column, and the lanes of each that did.
        uint simd_of = tid / uint(8 * N);
        float all = SUM ? 0.0f : -INFINITY;
        for (uint i = tid % uint(8 * N); i < LANES; i += uint(8 * N)) {
            all = together(all, together(parts[simd_of * LANES + i], parts[(simd_of + 2) * LANES + i]));
        }
        y[ulong(group.x) * ulong(p.n) + ulong(first_column + tid)] = SUM ? all : weigh(all);
    }
}
#define TILES(NAME, M, N) \
KERNEL(NAME "_f32", splade_tile<float, M, N>) \
KERNEL(NAME "_f16", splade_tile<half, M, N>) \
KERNEL(NAME "_bf16", splade_tile<bfloat, M, N>)
TILES("splade_tile64", 4, 4)
TILES("splade_tile32", 2, 2)
