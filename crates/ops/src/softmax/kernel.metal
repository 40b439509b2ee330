// y = exp(x - max(x)) / sum(exp(x - max(x))) over a row: in f32, one rounding.

// Whether a row is processed by a SIMD-group instead of a threadgroup.
constant bool IS_SHORT [[function_constant(0)]];

struct Row {
    uint n;
    uint rows;
    // Row stride in elements.
    uint stride;
};

METAL_FUNC float largest_of(float4 v) {
    return max(max(v[0], v[1]), max(v[2], v[3]));
}

METAL_FUNC float4 exp_of(float4 v) {
    return float4(precise::exp(v[0]), precise::exp(v[1]), precise::exp(v[2]), precise::exp(v[3]));
}

METAL_FUNC float sum_of(float4 v) {
    return (v[0] + v[1]) + (v[2] + v[3]);
}

template <typename T>
[[kernel]] void softmax(device const T *x [[buffer(0)]], device T *y [[buffer(1)]], constant Row &p [[buffer(2)]],
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
    // there on. Elements beyond the row are -INFINITY: they never are the maximum, and add nothing
    // to the sum. A NaN that `max` drops shows in the sum.
    float4 held = four_at<T>(x, first, p.n, -INFINITY);
    float most = largest_of(held);
    for (uint i = first + step; i < p.n; i += step) {
        most = max(most, largest_of(four_at<T>(x, i, p.n, -INFINITY)));
    }
    most = IS_SHORT ? simd_max(most) : group_max(most, part, lane, simd, simds);
    held = exp_of(held - most);
    float sum = sum_of(held);
    for (uint i = first + step; i < p.n; i += step) {
        sum += sum_of(exp_of(four_at<T>(x, i, p.n, -INFINITY) - most));
    }
    sum = IS_SHORT ? simd_sum(sum) : group_sum(sum, part, lane, simd, simds);
    put_four<T>(y, first, p.n, held / sum);
    for (uint i = first + step; i < p.n; i += step) {
        put_four<T>(y, i, p.n, exp_of(four_at<T>(x, i, p.n, -INFINITY) - most) / sum);
    }
}
FLOATS(softmax)
