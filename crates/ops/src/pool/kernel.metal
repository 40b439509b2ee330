// Pooling: one vector per sequence from one vector per token, every mode in one pass over the
// tokens, summed and returned in f32.
//
// A threadgroup processes 128 columns of one sequence: four columns per lane, and SIMD-groups take
// turns over the tokens.

// What the modes need.
constant bool HAS_SUM [[function_constant(0)]];
constant bool HAS_WEIGHTED [[function_constant(1)]];
constant bool HAS_MAX [[function_constant(2)]];

// The modes, numbered as `Pooling` in Rust.
constant uint BY_CLS = 0;
constant uint BY_MEAN = 1;
constant uint BY_MAX = 2;
constant uint BY_MEAN_SQRT_LEN = 3;
constant uint BY_WEIGHTED_MEAN = 4;
constant uint BY_LAST_TOKEN = 5;

struct Columns {
    uint n;
    // Token stride in elements.
    uint stride;
    uint modes;
};

// Rows of a sequence that count, and the position of the first of them in it.
struct Sequence {
    uint start;
    uint end;
    uint skipped;
};

// The larger, or NaN if either is NaN, so that a NaN is not dropped.
METAL_FUNC float larger(float a, float b) {
    return b > a || isnan(b) ? b : a;
}

METAL_FUNC float4 larger_of(float4 a, float4 b) {
    return float4(larger(a[0], b[0]), larger(a[1], b[1]), larger(a[2], b[2]), larger(a[3], b[3]));
}

// Combines the columns of all SIMD-groups in the first SIMD-group.
METAL_FUNC float4 gathered(float4 v, bool sums, threadgroup float4 *part, uint lane, uint simd, uint simds) {
    threadgroup_barrier(mem_flags::mem_threadgroup); // earlier parts have been read
    part[simd * LANES + lane] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd == 0) {
        for (uint i = 1; i < simds; i++) {
            float4 other = part[i * LANES + lane];
            v = sums ? v + other : larger_of(v, other);
        }
    }
    return v;
}

template <typename T>
[[kernel]] void pool(device const T *x [[buffer(0)]], constant Sequence *sequences [[buffer(1)]],
    constant uint *modes [[buffer(2)]], device float *y [[buffer(3)]], constant Columns &p [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float4 part[256]; // one per thread: the host launches at most eight SIMD-groups
    constant Sequence &s = sequences[group.y];
    uint i = 4 * (group.x * LANES + lane);
    float4 sum = float4(0.0f);
    float4 weighted = float4(0.0f);
    float4 most = float4(-INFINITY);
    if (HAS_SUM || HAS_WEIGHTED || HAS_MAX) {
        for (uint t = s.start + simd; t < s.end; t += simds) {
            float4 v = four_at<T>(x + ulong(t) * ulong(p.stride), i, p.n, 0.0f);
            if (HAS_SUM) {
                sum += v;
            }
            if (HAS_WEIGHTED) {
                weighted += v * float(t - s.start + s.skipped + 1);
            }
            if (HAS_MAX) {
                most = larger_of(most, v);
            }
        }
    }
    if (HAS_SUM) {
        sum = gathered(sum, true, part, lane, simd, simds);
    }
    if (HAS_WEIGHTED) {
        weighted = gathered(weighted, true, part, lane, simd, simds);
    }
    if (HAS_MAX) {
        most = gathered(most, false, part, lane, simd, simds);
    }
    if (simd > 0) {
        return;
    }
    ulong count = ulong(s.end - s.start);
    y += ulong(group.y) * ulong(p.modes) * ulong(p.n);
    for (uint m = 0; m < p.modes; m++) {
        uint mode = modes[m];
        float4 v = float4(0.0f);
        if (mode == BY_CLS || mode == BY_LAST_TOKEN) {
            uint t = mode == BY_CLS ? s.start : s.end - 1;
            v = four_at<T>(x + ulong(t) * ulong(p.stride), i, p.n, 0.0f);
        } else if (mode == BY_MAX) {
            v = most;
        } else if (mode == BY_MEAN) {
            v = sum / float(count);
        } else if (mode == BY_MEAN_SQRT_LEN) {
            v = sum / precise::sqrt(float(count));
        } else if (mode == BY_WEIGHTED_MEAN) {
            // The sum of the positions, from the first that counts to the last.
            v = weighted / float(count * (2 * ulong(s.skipped) + count + 1) / 2);
        }
        put_four<float>(y + ulong(m) * ulong(p.n), i, p.n, v);
    }
}
FLOATS(pool)
