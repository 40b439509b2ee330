// FlashAttention: y = softmax((q · kᵀ + positions) · scale + bias) · v with only a block of scores
// at a time (Dao et al. 2022, arXiv:2205.14135). Keys come block by block, and sums so far are
// rescaled when a larger score appears. Scores, exponentials, sums and both products are in f32; a
// result is rounded once.
//
// A row is a query of one head; the heads that share a KV head (grouped-query attention, GQA) are
// rows of the same block, so that k and v are read once for all. A threadgroup has four SIMD-groups
// and takes one work item: a block of rows of a sequence, over some of its keys. TOGETHER, the
// SIMD-groups take eight rows each, all over the same keys; otherwise there are eight rows in all,
// and each SIMD-group takes different keys. Where an item does not have all keys of its rows,
// another kernel joins the partial results in `parts`.

// Apple's specification has matrix products of one type only; its compiler accepts others. We use
// those that others ship for every Mac, which are known to compile: S by S into float (llama.cpp's
// matrix products in f16 and bf16), and float by half into float (its attention in f16). llama.cpp
// has float by bfloat into half only; so in bf16, exponentials are multiplied with v as bfloat by
// bfloat, in two parts, because one part would cost the result a second rounding. A second product
// is cheaper than v in float, which would take twice the threadgroup memory, and the time of
// reading it, once per product.
//
// S is the type of staged vectors, E that of exponentials multiplied with v, D the head size and N
// the keys of a block, as they are in threadgroup memory.
template <typename S, typename E, uint D, uint N>
[[kernel]] void attention(device const uchar *q [[buffer(0)]], device const uchar *k [[buffer(1)]],
    device const uchar *v [[buffer(2)]], device const half *k_scales [[buffer(3)]],
    device const half *v_scales [[buffer(4)]], device uchar *y [[buffer(5)]], device float *parts [[buffer(6)]],
    constant Shape &p [[buffer(7)]], device const uint *items [[buffer(8)]], device const uint *pages [[buffer(9)]],
    device const float *bias [[buffer(10)]], device const uint *rows [[buffer(11)]],
    device const uchar *position_keys [[buffer(12)]], device const uchar *position_queries [[buffer(13)]],
    uint2 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    // Rows start in different memory banks.
    constexpr uint PITCH = D + 16 / sizeof(S);
    constexpr uint TILE = N + 4;
    threadgroup vec<S, 4> staging[N * PITCH / 4];
    // Per SIMD-group: eight rows of scores, of exponentials, or of the result.
    threadgroup float tiles[ROWS * TILE];
    threadgroup float tops[ROWS];
    threadgroup float sums[ROWS];
    threadgroup float factors[ROWS];
    threadgroup S *staged = (threadgroup S *)staging;
    threadgroup float *tile = tiles + simd * OWN * TILE;

    device const uint *item_words = items + group.x * ITEM;
    Item item = {item_words[0], item_words[1], item_words[2], int(item_words[3]), int(item_words[4]), int(item_words[5]), item_words[6], item_words[7]};
    Task t = {item, group.y, pages, rows};
    // This SIMD-group's first row, and the first staged key that it takes.
    uint own = TOGETHER ? simd * OWN : 0;
    uint from = TOGETHER ? 0 : simd * 8;
    uint blocks = TOGETHER ? N / 8 : 1;
    // Four lanes share a row of the tile; each has every fourth key.
    uint r = own + lane / 4;
    uint column = lane % 4;
    threadgroup float *line = tile + lane / 4 * TILE;
    // Rows of exponentials start where rows of scores do, so that a lane writes only to its own
    // row.
    constexpr uint E_TILE = TILE * sizeof(float) / sizeof(E);
    threadgroup E *weights = (threadgroup E *)tile;
    // With two parts, the rounding error of an exponential is N after it.
    constexpr bool PARTS = sizeof(E) < sizeof(float);
    bool is_row = r < item.rows;
    uint head = t.head * p.group + (item.row + r) % p.group;
    int place = item.place + int((item.row + r) / p.group);
    int low = place - p.back;
    int high = is_row ? min(place + p.ahead + 1, item.end) : 0;
    float slope = 0.0f;
    if (BIAS == BIAS_ALIBI) {
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
    // The row's largest score so far, and this lane's part of the sum of its exponentials.
    float top = -INFINITY;
    float sum = 0.0f;

    for (int first = item.start; first < item.end; first += int(N)) {
        int key = first + int(from);
        bool any_visible = simd_any(key < high && key + int(blocks * 8) > low) && from < N;
        stage<S, D, N>(staging, k, k_scales, K_FORMAT, t, p, KEYS, first, tid);
        BARRIER;
        float x[N / 4] = {};
        if (any_visible) {
            multiply_staged<S, D, N>(mq, staged + from * PITCH, blocks, tile);
            SIMD_BARRIER;
            UNROLL
            for (uint b = 0; b < N / 4; b++) {
                if (b < blocks * 2) {
                    x[b] = line[column + b * 4];
                }
            }
            SIMD_BARRIER; // the tile has been read
        }

        if (HAS_C2P || HAS_P2C) {
            simdgroup_matrix<S, 8, 8> mk[D / 8];
            if (HAS_P2C && simd * 8 < N) {
                load<S, D>(mk, staged + simd * 8 * PITCH);
            }
            Pairs pairs = {item.place + int(item.row) - first - int(N - 1), int(r + N - 1 - column), tile, tid};
            if (HAS_C2P) {
                add_positions<S, D, N>(x, mq, any_visible, any_visible, tiles + r * TILE, 0, pairs, staging,
                    position_keys, t, p, POSITION_KEYS);
            }
            if (HAS_P2C) {
                add_positions<S, D, N>(x, mk, simd * 8 < N, any_visible, tiles + column * TILE, 4 * TILE, pairs, staging,
                    position_queries, t, p, POSITION_QUERIES);
            }
            BARRIER; // every tile has been read by every SIMD-group
        }

        if (any_visible) {
            float largest = top;
            UNROLL
            for (uint b = 0; b < N / 4; b++) {
                if (b < blocks * 2) {
                    int j = key + int(column + b * 4);
                    float s = x[b] * p.scale;
                    if (CAPPED) {
                        s = p.cap * precise::tanh(s / p.cap);
                    }
                    bool visible = j >= low && j < high;
                    if (BIAS == BIAS_ALIBI) {
                        s -= slope * float(abs(j - place));
                    }
                    if (BIAS == BIAS_TABLE && visible) {
                        s += bias[ulong(head) * ulong(p.distances) + ulong(int(p.origin) + j - place)];
                    }
                    x[b] = visible ? s : -INFINITY;
                    largest = max(largest, x[b]);
                }
            }
            largest = max(largest, simd_shuffle_xor(largest, 1));
            largest = max(largest, simd_shuffle_xor(largest, 2));
            float less = top == largest ? 1.0f : exp_below(top, largest);
            top = largest;
            sum *= less;
            if (simd_any(less != 1.0f)) {
                // Multiplies every row of the result by its own factor: a diagonal matrix from the
                // left.
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
                    threadgroup E *weight = weights + lane / 4 * E_TILE + column + b * 4;
                    weight[0] = E(e);
                    if (PARTS) {
                        weight[N] = E(e - float(E(e)));
                    }
                }
            }
        }

        BARRIER; // what was staged has been read
        stage<S, D, N>(staging, v, v_scales, K_FORMAT, t, p, VALUES, first, tid);
        BARRIER;
        if (any_visible) {
            UNROLL
            for (uint b = 0; b < N / 8; b++) {
                if (b < blocks) {
                    simdgroup_matrix<E, 8, 8> e;
                    simdgroup_load(e, weights + b * 8, E_TILE);
                    simdgroup_matrix<E, 8, 8> rest;
                    if (PARTS) {
                        simdgroup_load(rest, weights + N + b * 8, E_TILE);
                    }
                    UNROLL
                    for (uint i = 0; i < D / 8; i++) {
                        simdgroup_matrix<S, 8, 8> mv;
                        simdgroup_load(mv, staged + (from + b * 8) * PITCH + i * 8, PITCH);
                        simdgroup_multiply_accumulate(o[i], e, mv, o[i]);
                        if (PARTS) {
                            simdgroup_multiply_accumulate(o[i], rest, mv, o[i]);
                        }
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
        // The row's maximum over one or all SIMD-groups, and the factor of this SIMD-group's part.
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

// Keys of a block such that staged data stay below 32 KiB, with space for a second threadgroup
// where possible.
#define SIZES(NAME, S, E, LAST) \
KERNEL("attention_" NAME "_32", attention<S, E, 32, 32>) \
KERNEL("attention_" NAME "_64", attention<S, E, 64, 32>) \
KERNEL("attention_" NAME "_96", attention<S, E, 96, 32>) \
KERNEL("attention_" NAME "_128", attention<S, E, 128, 32>) \
KERNEL("attention_" NAME "_256", attention<S, E, 256, LAST>)
SIZES("f32", float, float, 16)
SIZES("f16", half, float, 32)
SIZES("bf16", bfloat, bfloat, 32)

// Numbers of a join: the sequence's first query, the block's first row, its rows, the slot of its
// first part, and the number of parts, which are contiguous, each with the rows of every KV head.
constant uint JOIN = 5;

// One SIMD-group per row joins parts by their largest scores, as blocks of keys are above. Each row
// attends to some key: if the last row of a block attends to none, the first attends to fewer keys
// than the block has rows, which is too few to split.
[[kernel]] void attention_join(device const float *parts [[buffer(0)]], device uchar *y [[buffer(1)]],
    constant Shape &p [[buffer(2)]], device const uint *joins [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
    device const uint *join_words = joins + group.x * JOIN;
    uint rows = join_words[2];
    ulong step = ulong(p.shared * rows) * ulong(p.size + 2);
    for (uint r = simd; r < rows; r += simds) {
        device const float *first = parts + (ulong(join_words[3]) + ulong(group.y * rows + r)) * ulong(p.size + 2);
        float top = -INFINITY;
        for (uint i = 0; i < join_words[4]; i++) {
            top = max(top, first[ulong(i) * step + ulong(p.size)]);
        }
        float total = 0.0f;
        for (uint i = 0; i < join_words[4]; i++) {
            device const float *part = first + ulong(i) * step + ulong(p.size);
            total += part[1] * exp_below(part[0], top);
        }
        for (uint c = lane; c < p.size; c += LANES) {
            float value = 0.0f;
            for (uint i = 0; i < join_words[4]; i++) {
                device const float *part = first + ulong(i) * step;
                value += part[c] * exp_below(part[p.size], top);
            }
            put(y, p, join_words[0], join_words[1] + r, group.y, c, value / total);
        }
    }
}
