// Kernel arguments, the vectors that work items refer to, and where results go.

constant bool TOGETHER [[function_constant(0)]];
// Format of q, y and the position tables, and format of k and v.
constant ushort Q_FORMAT [[function_constant(1)]];
constant ushort K_FORMAT [[function_constant(2)]];
// Whether every vector of a head starts at a multiple of four elements, and has a multiple of four.
constant bool VECTORS [[function_constant(3)]];
// Rows of a KV cache page, or 0 for packed keys.
constant ushort PAGE [[function_constant(4)]];
constant bool CAPPED [[function_constant(5)]];
constant ushort BIAS [[function_constant(6)]];
// Whether position tables are given: content-to-position, position-to-content.
constant bool HAS_C2P [[function_constant(7)]];
constant bool HAS_P2C [[function_constant(8)]];

constant ushort FORMAT_F32 = 0;
constant ushort FORMAT_F16 = 1;
constant ushort FORMAT_BF16 = 2;
constant ushort BIAS_ALIBI = 1;
constant ushort BIAS_TABLE = 2;

// Threads of a threadgroup, rows of a SIMD-group, and rows of a threadgroup.
constant uint THREADS = 128;
constant uint OWN = 8;
constant uint ROWS = 32;

#define UNROLL _Pragma("clang loop unroll(full)")
#define BARRIER threadgroup_barrier(mem_flags::mem_threadgroup)
#define SIMD_BARRIER simdgroup_barrier(mem_flags::mem_threadgroup)

// Elements from one token to the next, and from one head to the next.
struct Steps {
    uint token;
    uint head;
};

struct Shape {
    uint size;
    uint heads;
    // KV heads, and heads of q per KV head (GQA).
    uint shared;
    uint group;
    Steps q;
    Steps k;
    Steps v;
    Steps position_keys;
    Steps position_queries;
    // How many keys before and after its position a query attends to.
    int back;
    int ahead;
    float scale;
    float cap;
    // Number of distances in tables by distance, and the index of distance 0.
    uint distances;
    uint origin;
};

// A work item, in the order of the list's numbers.
constant uint ITEM = 8;
struct Item {
    // The sequence's first query in q, the block's first row in the sequence, its rows, and the
    // position of that first query.
    uint token;
    uint row;
    uint rows;
    int place;
    // The keys to visit, numbered within the sequence.
    int start;
    int end;
    // The sequence's first key row in k, or the offset of its page table.
    uint keys;
    // Where the item's partial results go, or NO_SLOT.
    uint slot;
};
constant uint NO_SLOT = 0xffffffff;

struct Task {
    Item item;
    // KV head.
    uint head;
    device const uint *pages;
    // The row of the position tables for each distance.
    device const uint *rows;
};

METAL_FUNC ulong vector_at(constant Steps &steps, ulong token, uint head) {
    return token * ulong(steps.token) + ulong(head) * ulong(steps.head);
}

// Element at which vector `i` of a kind begins: a row of the block, a key of the sequence, a
// distance. NOWHERE: all zeros.
constant ushort QUERIES = 0;
constant ushort KEYS = 1;
constant ushort VALUES = 2;
constant ushort POSITION_KEYS = 3;
constant ushort POSITION_QUERIES = 4;
constant ulong NOWHERE = 0xffffffffffffffff;

METAL_FUNC ulong line_of(Task t, constant Shape &p, ushort kind, int i) {
    if (kind == QUERIES) {
        uint row = t.item.row + uint(i);
        ulong at = vector_at(p.q, ulong(t.item.token + row / p.group), t.head * p.group + row % p.group);
        return uint(i) < t.item.rows ? at : NOWHERE;
    }
    if (kind == POSITION_KEYS || kind == POSITION_QUERIES) {
        // Distances of rows or keys beyond the last have no entry; their products are discarded.
        ulong row = ulong(t.rows[clamp(i + int(p.origin), 0, int(p.distances) - 1)]);
        return vector_at(kind == POSITION_KEYS ? p.position_keys : p.position_queries, row, t.head);
    }
    if (i >= t.item.end) {
        return NOWHERE;
    }
    ulong row = ulong(t.item.keys) + ulong(i);
    if (PAGE != 0) {
        row = ulong(t.pages[t.item.keys + uint(i) / PAGE]) * ulong(PAGE) + ulong(uint(i) % PAGE);
    }
    return vector_at(kind == KEYS ? p.k : p.v, row, t.head);
}

// Element c of the result of row `row` of a sequence.
METAL_FUNC void put(device uchar *y, constant Shape &p, uint token, uint row, uint head, uint c, float v) {
    ulong line = ulong(token + row / p.group) * ulong(p.heads) + ulong(head * p.group + row % p.group);
    ulong at = line * ulong(p.size) + ulong(c);
    if (Q_FORMAT == FORMAT_F32) {
        ((device float *)y)[at] = v;
    } else if (Q_FORMAT == FORMAT_F16) {
        ((device half *)y)[at] = half(v);
    } else {
        ((device bfloat *)y)[at] = bfloat(v);
    }
}

// exp(s − top); 0 if both are −∞ because no key was visible.
METAL_FUNC float exp_below(float s, float top) {
    return precise::exp(s - (top == -INFINITY ? 0.0f : top));
}
