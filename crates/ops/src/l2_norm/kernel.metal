// L2-normalize: y = x / max(|x|, least) over a row, in f32, one rounding.

// Whether a row is processed by a SIMD-group instead of a threadgroup.
constant bool IS_SHORT [[function_constant(0)]];

struct Row {
    uint n;
    uint rows;
    // Row stride in elements.
    uint stride;
    // Lower limit of the L2 norm.
    float least;
};

template <typename T>
[[kernel]] void l2_norm(device const T *x [[buffer(0)]], device T *y [[buffer(1)]], constant Row &p [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float part[32];
    uint row = IS_SHORT ? group * simds + simd : group;
    if (IS_SHORT && row >= p.rows) {
        return;
    }
    x += ulong(row) * ulong(p.stride);
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
    float length = precise::sqrt(IS_SHORT ? simd_sum(squares) : group_sum(squares, part, lane, simd, simds));
    // Not `max`, which would drop a NaN.
    length = length < p.least ? p.least : length;
    put_four<T>(y, first, p.n, held / length);
    for (uint i = first + step; i < p.n; i += step) {
        put_four<T>(y, i, p.n, four_at<T>(x, i, p.n, 0.0f) / length);
    }
}
FLOATS(l2_norm)
