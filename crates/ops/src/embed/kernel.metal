// Embedding lookup: y[t] = scale * words[ids[t]] + the rows of further tables: in f32, one
// rounding. A thread computes four neighbours.

// Number of tables, at most three.
constant ushort TABLES [[function_constant(0)]];

struct Table {
    // Rows; an id beyond them, which callers must not send, counts as the last.
    uint rows;
    // Elements from one row to the next.
    uint stride;
};

struct Tables {
    uint n;
    // Scale of the first table.
    float scale;
    Table first;
    Table second;
    Table third;
};

template <typename T>
METAL_FUNC float4 look_up(device const T *table, uint id, constant Table &t, uint i, uint n) {
    return four_at<T>(table + ulong(min(id, t.rows - 1)) * ulong(t.stride), i, n, 0.0f);
}

template <typename T>
[[kernel]] void embed(device const T *a [[buffer(0)]], device const uint *ids_a [[buffer(1)]],
    device const T *b [[buffer(2)]], device const uint *ids_b [[buffer(3)]], device const T *c [[buffer(4)]],
    device const uint *ids_c [[buffer(5)]], device T *y [[buffer(6)]], constant Tables &p [[buffer(7)]],
    uint3 at [[thread_position_in_grid]]) {
    uint i = 4 * at.x;
    float4 v = look_up<T>(a, ids_a[at.y], p.first, i, p.n) * p.scale;
    if (TABLES > 1) {
        v += look_up<T>(b, ids_b[at.y], p.second, i, p.n);
    }
    if (TABLES > 2) {
        v += look_up<T>(c, ids_c[at.y], p.third, i, p.n);
    }
    put_four<T>(y + ulong(at.y) * ulong(p.n), i, p.n, v);
}
FLOATS(embed)
