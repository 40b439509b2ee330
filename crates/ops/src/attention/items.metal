// What the kernels are told, which vectors their items mean, and where results go.

constant bool TOGETHER [[function_constant(0)]];
// What q, y and the tables of positions are in, and what k and v.
constant ushort Q_FORMAT [[function_constant(1)]];
constant ushort K_FORMAT [[function_constant(2)]];
// Whether every vector of a head begins at a multiple of four elements, and has such a number of them.
constant bool VECTORS [[function_constant(3)]];
// Rows of a page, or 0 where keys lie next to each other.
constant ushort PAGE [[function_constant(4)]];
constant bool CAPPED [[function_constant(5)]];
constant ushort BIAS [[function_constant(6)]];
// Which tables of positions there are.
constant bool MET_BY_QUERIES [[function_constant(7)]];
constant bool MET_BY_KEYS [[function_constant(8)]];

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
    // Heads of k and v, and how many of q's share one of them.
    uint shared;
    uint group;
    Steps q;
    Steps k;
    Steps v;
    Steps position_keys;
    Steps position_queries;
    // How many keys before its place a query sees, and how many after.
    int back;
    int ahead;
    float scale;
    float cap;
    // Of what is given by distance: how many distances, and where distance 0 stands.
    uint distances;
    uint origin;
};

// What the list says of an item, in its order.
constant uint ITEM = 8;
struct Item {
    // The sequence's first query in q, the block's first row in the sequence, its rows, and the place of that first query.
    uint token;
    uint row;
    uint rows;
    int place;
    // The keys to visit, as numbered in the sequence.
    int start;
    int end;
    // The sequence's first key in k, or where its pages are in the list of them.
    uint keys;
    // Where the item's parts go, or NO_SLOT.
    uint slot;
};
constant uint NO_SLOT = 0xffffffff;

struct Task {
    Item item;
    // Of k and v.
    uint head;
    device const uint *pages;
    // The row of the tables of positions for each distance.
    device const uint *rows;
};

METAL_FUNC ulong vector_at(constant Steps &steps, ulong token, uint head) {
    return token * ulong(steps.token) + ulong(head) * ulong(steps.head);
}

// Which element vector `i` of a kind begins at: a row of the block, a key of the sequence, a distance. NOWHERE: all zeros.
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
        // Distances of rows or keys that are not there have no entry; nobody looks at what they give.
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

// The result of row `row` of a sequence, element c.
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

// exp(s − top), of which both are −∞ where no key was seen: then it is 0.
METAL_FUNC float exp_below(float s, float top) {
    return precise::exp(s - (top == -INFINITY ? 0.0f : top));
}
