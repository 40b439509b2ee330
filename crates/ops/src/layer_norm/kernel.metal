// y = (s - mean(s)) / sqrt(var(s) + eps) * w + b,  s = x + residual. One threadgroup per row,
// everything in f32, one rounding.

constant bool HAS_RESIDUAL [[function_constant(0)]];
constant bool HAS_BIAS [[function_constant(1)]];

struct Row {
    uint n;
    // Rows are heads of tokens, with strides in elements between heads and between tokens.
    uint heads;
    uint head;
    uint token;
    uint residual_head;
    uint residual_token;
    // Rows of the weight: one, or one per head.
    uint weights;
    float eps;
};

template <typename T>
METAL_FUNC float sum_at(device const T *x, device const T *residual, uint i) {
    float v = float(x[i]);
    if (HAS_RESIDUAL) {
        v += float(residual[i]);
    }
    return v;
}

template <typename T>
[[kernel]] void layer_norm(device const T *x [[buffer(0)]], device const T *residual [[buffer(1)]],
    device const T *w [[buffer(2)]], device const T *bias [[buffer(3)]], device T *y [[buffer(4)]],
    constant Row &p [[buffer(5)]], uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float part[32];
    x += ulong(row / p.heads) * ulong(p.token) + ulong(row % p.heads) * ulong(p.head);
    residual += ulong(row / p.heads) * ulong(p.residual_token) + ulong(row % p.heads) * ulong(p.residual_head);
    w += ulong(row % p.weights) * ulong(p.n);
    y += ulong(row) * ulong(p.n);
    float sum = 0.0f;
    for (uint i = tid; i < p.n; i += threads) {
        sum += sum_at<T>(x, residual, i);
    }
    float mean = group_sum(sum, part, lane, simd, simds) / float(p.n);
    float squares = 0.0f;
    for (uint i = tid; i < p.n; i += threads) {
        float d = sum_at<T>(x, residual, i) - mean;
        squares += d * d;
    }
    float scale = 1.0f / sqrt(group_sum(squares, part, lane, simd, simds) / float(p.n) + p.eps);
    for (uint i = tid; i < p.n; i += threads) {
        float v = (sum_at<T>(x, residual, i) - mean) * scale * float(w[i]);
        if (HAS_BIAS) {
            v += float(bias[i]);
        }
        y[i] = T(v);
    }
}
FLOATS(layer_norm)
