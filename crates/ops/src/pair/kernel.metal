// Rows of several matrices combined by index: a sum with ReLU, a product, or one number per row. All
// in f32; elements are rounded once, sums stay in f32. A SIMD-group computes a row.

// Numbered as `Combine` in Rust.
constant ushort RELU_SUM = 0;
constant ushort PRODUCT = 1;
constant ushort DOT = 2;

constant ushort COMBINE [[function_constant(0)]];
constant bool HAS_THIRD [[function_constant(1)]];
constant bool HAS_OFFSETS [[function_constant(2)]];

struct Matrix {
    // Rows; an index beyond them, which callers must not send, counts as the last.
    uint count;
    // Elements from one row to the next.
    uint stride;
};

struct Pairs {
    uint rows;
    uint n;
    Matrix first;
    Matrix second;
    Matrix third;
};

template <typename T>
METAL_FUNC device const T *row_at(device const T *rows, uint id, constant Matrix &m) {
    return rows + ulong(min(id, m.count - 1)) * ulong(m.stride);
}

// NaN stays.
METAL_FUNC float relu_of(float x) {
    return x < 0.0f ? 0.0f : x;
}

METAL_FUNC float4 relu_of_four(float4 v) {
    return float4(relu_of(v[0]), relu_of(v[1]), relu_of(v[2]), relu_of(v[3]));
}

// `y` has elements of T, `sums` is the same memory for the combinations that give one f32 per row.
template <typename T>
[[kernel]] void pair(device const T *a [[buffer(0)]], device const uint *ids_a [[buffer(1)]],
    device const T *b [[buffer(2)]], device const uint *ids_b [[buffer(3)]], device const T *c [[buffer(4)]],
    device const uint *ids_c [[buffer(5)]], device const float *offsets [[buffer(6)]], device T *y [[buffer(7)]],
    device float *sums [[buffer(8)]], constant Pairs &p [[buffer(9)]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
    uint row = group * simds + simd;
    if (row >= p.rows) {
        return;
    }
    a = row_at<T>(a, ids_a[row], p.first);
    b = row_at<T>(b, ids_b[row], p.second);
    if (HAS_THIRD) {
        c = row_at<T>(c, ids_c[row], p.third);
    }
    float sum = 0.0f;
    for (uint i = 4 * lane; i < p.n; i += 4 * LANES) {
        float4 u = four_at<T>(a, i, p.n, 0.0f);
        float4 v = four_at<T>(b, i, p.n, 0.0f);
        float4 w = float4(0.0f);
        if (HAS_THIRD) {
            w = four_at<T>(c, i, p.n, 0.0f);
        }
        if (COMBINE == RELU_SUM) {
            put_four<T>(y + ulong(row) * ulong(p.n), i, p.n, relu_of_four(u + v + w));
        } else if (COMBINE == PRODUCT) {
            put_four<T>(y + ulong(row) * ulong(p.n), i, p.n, u * v);
        } else if (COMBINE == DOT) {
            sum += dot(u, v);
        } else {
            sum += dot(relu_of_four(u + v), w);
        }
    }
    if (COMBINE > PRODUCT) {
        sum = simd_sum(sum);
        if (HAS_OFFSETS) {
            sum += offsets[min(ids_c[row], p.third.count - 1)];
        }
        if (lane == 0) {
            sums[row] = sum;
        }
    }
}
FLOATS(pair)
