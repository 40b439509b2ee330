// y = softmax((q · kᵀ + positions) · scale + bias) · v with the scores of a block only, never all of them (Dao et al. 2022,
// arXiv:2205.14135): keys come block by block, and what was summed so far is scaled when a larger score comes. Scores,
// exponentials, sums and both products are in f32; a result is rounded once.
//
// A row is a query of one head; the heads that share keys are rows of the same block, so that k and v are read once for all. A
// threadgroup has four SIMD-groups and takes one item of the host's list: a block of rows of a sequence, over some of its keys.
// TOGETHER they take eight rows each, all over the same keys; else there are eight rows in all, and each takes other keys of
// them. Where an item has not all keys of its rows, another kernel joins what the items left in `parts`.

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

// Four elements, of which there are `left`.
template <typename E>
METAL_FUNC float4 four(device const uchar *from, ulong at, uint left) {
    device const E *x = (device const E *)from + at;
    if (VECTORS) {
        vec<E, 4> v = *(device const vec<E, 4> *)x;
        return float4(float(v.x), float(v.y), float(v.z), float(v.w));
    }
    return float4(float(x[0]), left > 1 ? float(x[1]) : 0.0f, left > 2 ? float(x[2]) : 0.0f,
        left > 3 ? float(x[3]) : 0.0f);
}

METAL_FUNC float4 four_of(device const uchar *from, device const half *scales, ushort format, ulong at, uint left) {
    if (format == FORMAT_F32) {
        return four<float>(from, at, left);
    }
    if (format == FORMAT_F16) {
        return four<half>(from, at, left);
    }
    if (format == FORMAT_BF16) {
        return four<bfloat>(from, at, left);
    }
    // Blocks of 32 codes with a scale each; both lie without gaps.
    return four<char>(from, at, left) * float(scales[at / 32]);
}

// Brings N vectors, from number `first` on, to threadgroup memory, with zeros up to D elements.
template <typename S, uint D, uint N>
METAL_FUNC void stage(threadgroup vec<S, 4> *to, device const uchar *from, device const half *scales, ushort format,
    Task t, constant Shape &p, ushort kind, int first, uint tid) {
    constexpr uint PITCH = D + 16 / sizeof(S);
    for (uint i = tid; i < N * (D / 4); i += THREADS) {
        uint line = i / (D / 4);
        uint c = i % (D / 4) * 4;
        ulong at = line_of(t, p, kind, first + int(line));
        float4 v = float4(0.0f);
        if (at != NOWHERE && c < p.size) {
            v = four_of(from, scales, format, at + ulong(c), p.size - c);
        }
        to[(line * PITCH + c) / 4] = vec<S, 4>(S(v.x), S(v.y), S(v.z), S(v.w));
    }
}

template <typename S, uint D>
METAL_FUNC void load(thread simdgroup_matrix<S, 8, 8> *m, threadgroup const S *rows) {
    UNROLL
    for (uint i = 0; i < D / 8; i++) {
        simdgroup_load(m[i], rows + i * 8, D + 16 / sizeof(S));
    }
}

// Products of eight vectors with 8 · `blocks` staged ones, of at most N, to the tile.
template <typename S, uint D, uint N>
METAL_FUNC void meet(thread simdgroup_matrix<S, 8, 8> *m, threadgroup const S *staged, uint blocks,
    threadgroup float *tile) {
    constexpr uint PITCH = D + 16 / sizeof(S);
    simdgroup_float8x8 sums[N / 8];
    UNROLL
    for (uint b = 0; b < N / 8; b++) {
        sums[b] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    UNROLL
    for (uint i = 0; i < D / 8; i++) {
        UNROLL
        for (uint b = 0; b < N / 8; b++) {
            if (b < blocks) {
                simdgroup_matrix<S, 8, 8> k;
                simdgroup_load(k, staged + b * 8 * PITCH + i * 8, PITCH, ulong2(0), true);
                simdgroup_multiply_accumulate(sums[b], m[i], k, sums[b]);
            }
        }
    }
    UNROLL
    for (uint b = 0; b < N / 8; b++) {
        if (b < blocks) {
            simdgroup_store(sums[b], tile + b * 8, N + 4);
        }
    }
}

// A block's rows and keys by their distances: the smallest, how much further this lane's row is from its first key, and where
// this SIMD-group has its products.
struct Pairs {
    int nearest;
    int further;
    threadgroup float *tile;
    uint tid;
};

// Adds to scores what their rows, or their keys, give with the positions of their distances. Row r and key c are r + N − 1 − c
// further than the nearest. Each SIMD-group multiplies eight rows, or keys, with all; every pair then takes what it asks for:
// that of this lane's first key is in `met`, and of its next ones `step` on each.
template <typename S, uint D, uint N>
METAL_FUNC void add_positions(thread float *x, thread simdgroup_matrix<S, 8, 8> *m, bool meets,
    threadgroup const float *met, uint step, Pairs pairs, threadgroup vec<S, 4> *staging, device const uchar *table,
    Task t, constant Shape &p, ushort kind) {
    for (uint piece = 0; piece < ROWS + N - 1; piece += N) {
        BARRIER; // what was staged, and met, has been read
        stage<S, D, N>(staging, table, (device const half *)table, Q_FORMAT, t, p, kind, pairs.nearest + int(piece),
            pairs.tid);
        BARRIER;
        if (meets) {
            meet<S, D, N>(m, (threadgroup const S *)staging, N / 8, pairs.tile);
        }
        BARRIER;
        UNROLL
        for (uint b = 0; b < N / 4; b++) {
            int at = pairs.further - int(piece + b * 4);
            x[b] += at >= 0 && at < int(N) ? met[b * step + uint(at)] : 0.0f;
        }
    }
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

// S is what vectors are staged in, D the size of a head and N the keys of a block, as they are in threadgroup memory.
template <typename S, uint D, uint N>
[[kernel]] void attention(device const uchar *q [[buffer(0)]], device const uchar *k [[buffer(1)]],
    device const uchar *v [[buffer(2)]], device const half *k_scales [[buffer(3)]],
    device const half *v_scales [[buffer(4)]], device uchar *y [[buffer(5)]], device float *parts [[buffer(6)]],
    constant Shape &p [[buffer(7)]], device const uint *items [[buffer(8)]], device const uint *pages [[buffer(9)]],
    device const float *bias [[buffer(10)]], device const uint *rows [[buffer(11)]],
    device const uchar *position_keys [[buffer(12)]], device const uchar *position_queries [[buffer(13)]],
    uint2 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    // Rows begin in different banks of the memory.
    constexpr uint PITCH = D + 16 / sizeof(S);
    constexpr uint TILE = N + 4;
    threadgroup vec<S, 4> staging[N * PITCH / 4];
    // Of each SIMD-group: eight rows of scores, of exponentials, or of the result.
    threadgroup float tiles[ROWS * TILE];
    threadgroup float tops[ROWS];
    threadgroup float sums[ROWS];
    threadgroup float factors[ROWS];
    threadgroup S *staged = (threadgroup S *)staging;
    threadgroup float *tile = tiles + simd * OWN * TILE;

    device const uint *told = items + group.x * ITEM;
    Item item = {told[0], told[1], told[2], int(told[3]), int(told[4]), int(told[5]), told[6], told[7]};
    Task t = {item, group.y, pages, rows};
    // This SIMD-group's first row, and the staged keys that it takes.
    uint own = TOGETHER ? simd * OWN : 0;
    uint from = TOGETHER ? 0 : simd * 8;
    uint blocks = TOGETHER ? N / 8 : 1;
    // Four lanes have a row of the tile; each has every fourth key.
    uint r = own + lane / 4;
    uint column = lane % 4;
    threadgroup float *line = tile + lane / 4 * TILE;
    bool is_row = r < item.rows;
    uint head = t.head * p.group + (item.row + r) % p.group;
    int place = item.place + int((item.row + r) / p.group);
    int low = place - p.back;
    int high = is_row ? min(place + p.ahead + 1, item.end) : 0;
    float slope = 0.0f;
    if (BIAS == BIAS_ALIBI && is_row) {
        slope = bias[head];
    }

    simdgroup_matrix<S, 8, 8> mq[D / 8];
    for (uint first = 0; first < (TOGETHER ? ROWS : OWN); first += N) {
        stage<S, D, N>(staging, q, k_scales, Q_FORMAT, t, p, QUERIES, int(first), tid);
        BARRIER;
        if (own >= first && own < first + N) {
            load<S, D>(mq, staged + (own - first) * PITCH);
        }
        BARRIER;
    }
    simdgroup_float8x8 o[D / 8];
    UNROLL
    for (uint i = 0; i < D / 8; i++) {
        o[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    // Of the row: its largest score so far, and this lane's part of the sum of its exponentials.
    float top = -INFINITY;
    float sum = 0.0f;

    for (int first = item.start; first < item.end; first += int(N)) {
        int key = first + int(from);
        bool sees = simd_any(key < high && key + int(blocks * 8) > low) && from < N;
        stage<S, D, N>(staging, k, k_scales, K_FORMAT, t, p, KEYS, first, tid);
        BARRIER;
        float x[N / 4] = {};
        if (sees) {
            meet<S, D, N>(mq, staged + from * PITCH, blocks, tile);
            SIMD_BARRIER;
            UNROLL
            for (uint b = 0; b < N / 4; b++) {
                if (b < blocks * 2) {
                    x[b] = line[column + b * 4];
                }
            }
            SIMD_BARRIER; // the tile has been read
        }

        if (MET_BY_QUERIES || MET_BY_KEYS) {
            simdgroup_matrix<S, 8, 8> mk[D / 8];
            if (MET_BY_KEYS && simd * 8 < N) {
                load<S, D>(mk, staged + simd * 8 * PITCH);
            }
            Pairs pairs = {item.place + int(item.row) - first - int(N - 1), int(r + N - 1 - column), tile, tid};
            if (MET_BY_QUERIES) {
                add_positions<S, D, N>(x, mq, sees, tiles + r * TILE, 0, pairs, staging, position_keys, t, p,
                    POSITION_KEYS);
            }
            if (MET_BY_KEYS) {
                add_positions<S, D, N>(x, mk, simd * 8 < N, tiles + column * TILE, 4 * TILE, pairs, staging,
                    position_queries, t, p, POSITION_QUERIES);
            }
            BARRIER; // every tile has been read by every SIMD-group
        }

        if (sees) {
            float largest = top;
            UNROLL
            for (uint b = 0; b < N / 4; b++) {
                if (b < blocks * 2) {
                    int j = key + int(column + b * 4);
                    float s = x[b] * p.scale;
                    if (CAPPED) {
                        s = p.cap * precise::tanh(s / p.cap);
                    }
                    bool seen = j >= low && j < high;
                    if (BIAS == BIAS_ALIBI) {
                        s -= slope * float(abs(j - place));
                    }
                    if (BIAS == BIAS_TABLE && seen) {
                        s += bias[ulong(head) * ulong(p.distances) + ulong(int(p.origin) + j - place)];
                    }
                    x[b] = seen ? s : -INFINITY;
                    largest = max(largest, x[b]);
                }
            }
            largest = max(largest, simd_shuffle_xor(largest, 1));
            largest = max(largest, simd_shuffle_xor(largest, 2));
            float less = top == largest ? 1.0f : exp_below(top, largest);
            top = largest;
            sum *= less;
            if (simd_any(less != 1.0f)) {
                // Every row of the result times a factor of its own: a diagonal matrix from the left.
                line[column * 2] = lane / 4 == column * 2 ? less : 0.0f;
                line[column * 2 + 1] = lane / 4 == column * 2 + 1 ? less : 0.0f;
                SIMD_BARRIER;
                simdgroup_float8x8 diagonal;
                simdgroup_load(diagonal, tile, TILE);
                UNROLL
                for (uint i = 0; i < D / 8; i++) {
                    simdgroup_multiply(o[i], diagonal, o[i]);
                }
                SIMD_BARRIER; // the tile has been read
            }
            UNROLL
            for (uint b = 0; b < N / 4; b++) {
                if (b < blocks * 2) {
                    float e = exp_below(x[b], top);
                    sum += e;
                    line[column + b * 4] = e;
                }
            }
        }

        BARRIER; // what was staged has been read
        stage<S, D, N>(staging, v, v_scales, K_FORMAT, t, p, VALUES, first, tid);
        BARRIER;
        if (sees) {
            UNROLL
            for (uint b = 0; b < N / 8; b++) {
                if (b < blocks) {
                    simdgroup_float8x8 e;
                    simdgroup_load(e, tile + b * 8, TILE);
                    UNROLL
                    for (uint i = 0; i < D / 8; i++) {
                        simdgroup_matrix<S, 8, 8> mv;
                        simdgroup_load(mv, staged + (from + b * 8) * PITCH + i * 8, PITCH);
                        simdgroup_multiply_accumulate(o[i], e, mv, o[i]);
                    }
                }
            }
        }
        BARRIER; // the values have been read
    }

    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    if (column == 0) {
        tops[simd * OWN + lane / 4] = top;
        sums[simd * OWN + lane / 4] = sum;
    }
    BARRIER;
    parts += (ulong(item.slot) + ulong(t.head * item.rows)) * ulong(p.size + 2);
    if (tid < ROWS) {
        // The row's in all, which is in one SIMD-group or in every one, and what this one's part of it is multiplied with.
        uint step = TOGETHER ? ROWS : OWN;
        float most = -INFINITY;
        for (uint i = tid % step; i < ROWS; i += step) {
            most = max(most, tops[i]);
        }
        float total = 0.0f;
        for (uint i = tid % step; i < ROWS; i += step) {
            total += sums[i] * exp_below(tops[i], most);
        }
        factors[tid] = exp_below(tops[tid], most);
        if (item.slot == NO_SLOT) {
            factors[tid] = total == 0.0f ? 0.0f : factors[tid] / total;
        } else if (tid < item.rows) {
            parts[ulong(tid) * ulong(p.size + 2) + ulong(p.size)] = most;
            parts[ulong(tid) * ulong(p.size + 2) + ulong(p.size + 1)] = total;
        }
    }
    UNROLL
    for (uint first = 0; first < D; first += N) {
        UNROLL
        for (uint b = 0; b < N / 8; b++) {
            simdgroup_store(o[first / 8 + b], tile + b * 8, TILE);
        }
        BARRIER;
        for (uint i = tid; i < item.rows * N; i += THREADS) {
            uint row = i / N;
            uint c = first + i % N;
            if (c < p.size) {
                float value = 0.0f;
                for (uint at = row; at < (TOGETHER ? row + 1 : ROWS); at += OWN) {
                    value += factors[at] * tiles[at * TILE + i % N];
                }
                if (item.slot == NO_SLOT) {
                    put(y, p, item.token, item.row + row, t.head, c, value);
                } else {
                    parts[ulong(row) * ulong(p.size + 2) + ulong(c)] = value;
                }
            }
        }
        BARRIER; // the tiles have been read
    }
}

// Keys of a block so that all that is staged stays below 32 KiB, with room for a second threadgroup where it can.
#define SIZES(NAME, S, LAST) \
KERNEL("attention_" NAME "_32", attention<S, 32, 32>) \
KERNEL("attention_" NAME "_64", attention<S, 64, 32>) \
KERNEL("attention_" NAME "_96", attention<S, 96, 32>) \
KERNEL("attention_" NAME "_128", attention<S, 128, 32>) \
KERNEL("attention_" NAME "_256", attention<S, 256, LAST>)
SIZES("f32", float, 16)
SIZES("f16", half, 32)
SIZES("bf16", bfloat, 32)

// What a join says: the sequence's first query, the block's first row, its rows, the slot of its first part, and its parts,
// which lie one after another, each with the rows of every head of k and v.
constant uint JOIN = 5;

// A SIMD-group a row: parts by their largest scores, as blocks of keys are above.
[[kernel]] void attention_join(device const float *parts [[buffer(0)]], device uchar *y [[buffer(1)]],
    constant Shape &p [[buffer(2)]], device const uint *joins [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
    device const uint *told = joins + group.x * JOIN;
    uint rows = told[2];
    ulong step = ulong(p.shared * rows) * ulong(p.size + 2);
    for (uint r = simd; r < rows; r += simds) {
        device const float *first = parts + (ulong(told[3]) + ulong(group.y * rows + r)) * ulong(p.size + 2);
        float top = -INFINITY;
        for (uint i = 0; i < told[4]; i++) {
            top = max(top, first[ulong(i) * step + ulong(p.size)]);
        }
        float total = 0.0f;
        for (uint i = 0; i < told[4]; i++) {
            device const float *part = first + ulong(i) * step + ulong(p.size);
            total += part[1] * exp_below(part[0], top);
        }
        for (uint c = lane; c < p.size; c += LANES) {
            float value = 0.0f;
            for (uint i = 0; i < told[4]; i++) {
                device const float *part = first + ulong(i) * step;
                value += part[c] * exp_below(part[p.size], top);
            }
            put(y, p, told[0], told[1] + r, group.y, c, total == 0.0f ? 0.0f : value / total);
        }
    }
}
