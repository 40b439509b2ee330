// y = x / sqrt(mean(x^2) + eps) * w: the sum and the normalized value in f32, rounded to T,
// multiplied by w in T. In Gemma's form the product with 1 + w is rounded once. A residual is added
// afterwards and rounded once more.

// Whether a row is processed by a SIMD-group instead of a threadgroup.
constant bool IS_SHORT [[function_constant(0)]];
constant bool FROM_ONE [[function_constant(1)]];
constant bool HAS_RESIDUAL [[function_constant(2)]];

struct Row {
    uint n;
    uint rows;
    // Rows are heads of tokens, with strides in elements between heads and between tokens.
    uint heads;
    uint head;
    uint token;
    uint residual_head;
    uint residual_token;
    float eps;
};

template <typename T>
METAL_FUNC float4 weighted(float4 v, device const T *w, device const T *residual, uint i, uint n) {
    float4 weight = four_at<T>(w, i, n, 0.0f);
    v = FROM_ONE ? v * (1.0f + weight) : rounded<T>(v) * weight;
    if (HAS_RESIDUAL) {
        v = rounded<T>(v) + four_at<T>(residual, i, n, 0.0f);
    }
    return v;
}

template <typename T>
[[kernel]] void rms_norm(device const T *x [[buffer(0)]], device const T *w [[buffer(1)]],
    device const T *residual [[buffer(2)]], device T *y [[buffer(3)]], constant Row &p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float part[32];
    uint row = IS_SHORT ? group * simds + simd : group;
    if (IS_SHORT && row >= p.rows) {
        return;
    }
    x += ulong(row / p.heads) * ulong(p.token) + ulong(row % p.heads) * ulong(p.head);
    residual += ulong(row / p.heads) * ulong(p.residual_token) + ulong(row % p.heads) * ulong(p.residual_head);
    y += ulong(row) * ulong(p.n);
    uint first = 4 * (IS_SHORT ? lane : tid);
    uint step = 4 * (IS_SHORT ? LANES : threads);
    // A thread keeps the four elements that it reads first. Only longer rows are read again, from
    // there on.
    float4 held = four_at<T>(x, first, p.n, 0.0f);
    float squares = dot(held, held);
    for (uint i = first + step; i < p.n; i += step) {
        float4 v = four_at<T>(x, i, p.n, 0.0f);
        squares += dot(v, v);
    }
    float sum = IS_SHORT ? simd_sum(squares) : group_sum(squares, part, lane, simd, simds);
    float scale = 1.0f / precise::sqrt(sum / float(p.n) + p.eps);
    put_four<T>(y, first, p.n, weighted<T>(held * scale, w, residual, first, p.n));
    for (uint i = first + step; i < p.n; i += step) {
        put_four<T>(y, i, p.n, weighted<T>(four_at<T>(x, i, p.n, 0.0f) * scale, w, residual, i, p.n));
    }
}
FLOATS(rms_norm)
