// Kernel arguments, and the rows and keys that a block of threads takes. The table has the places
// of the rows. Each block computes its part of the keys from its index and the sequence's length,
// so that a captured launch can be replayed for other lengths.
#pragma once
#include "launch/cuda/prelude.cuh"

// Format of k and v.
enum Format : uint { FORMAT_F32, FORMAT_F16, FORMAT_BF16, FORMAT_Q8 };
// Bias kind.
enum Added : uint { ADDED_NONE, ADDED_ALIBI, ADDED_TABLE };

// Larger than any distance between a query and a key, as in cuda.rs.
constexpr int FAR = 1 << 30;

constexpr float LOG2E = 1.4426950408889634f;

// Elements from one token to the next, and from one head to the next.
struct Steps {
    uint token, head;
    __device__ __forceinline__ size_t at(size_t row, uint of) const { return row * token + size_t(of) * head; }
};

struct Shape {
    // Head size; heads of q, KV heads, and heads of q per KV head (grouped-query attention, GQA).
    uint size, heads, shared, group;
    Steps q, k, v, position_keys, position_queries;
    // Whether 16 bytes may be read at once everywhere.
    uint in_sixteens;
    uint k_format;
    // Rows of a KV cache page, or 0 for packed keys.
    uint page;
    // How many keys before and after its position a query attends to; whether the last query is at
    // the last key.
    int back, ahead;
    uint at_end;
    float scale;
    // 0: no soft cap.
    float cap;
    // Bias kind, where its values are in the table, and the largest distance that they distinguish.
    uint added, bias;
    int reach;
    // Where position rows by distance are in the table, how many, and the index of distance 0.
    uint distances, distance_count;
    int origin;
    // Where this launch's blocks are in the table, the most parts of a block's keys, and where the
    // counters of finished parts are.
    uint entries, splits, tickets;
    // KV heads that a block takes one after another: 1 where keys are split.
    uint turns;
    // Whether blocks are counted from the last: see `alternate_row_order` in call.rs.
    uint from_end;
};

#define SHAPE uint size, uint heads, uint shared, uint q_token, uint q_head, uint k_token, uint k_head, uint v_token, \
    uint v_head, uint pk_token, uint pk_head, uint pq_token, uint pq_head, uint in_sixteens, uint k_format, uint page, \
    int back, int ahead, uint at_end, float scale, float cap, uint added, uint bias, int reach, uint distances, \
    uint distance_count, int origin, uint entries, uint splits, uint tickets, uint turns, uint from_end
#define ARGS Shape{size, heads, shared, heads / shared, {q_token, q_head}, {k_token, k_head}, {v_token, v_head}, \
    {pk_token, pk_head}, {pq_token, pq_head}, in_sixteens, k_format, page, back, ahead, at_end, scale, cap, added, bias, \
    reach, distances, distance_count, origin, entries, splits, tickets, turns, from_end}

// Shape with the constants of most encoders, so that the compiler can drop branches: heads of D
// elements, as many KV heads as heads of q, aligned, packed, no mask, bias or cap.
template <uint D> __device__ __forceinline__ Shape encoder_shape(Shape s) {
    s.size = D, s.shared = s.heads, s.group = 1, s.in_sixteens = 1, s.page = 0, s.at_end = 0, s.cap = 0.0f, s.added = ADDED_NONE;
    s.back = s.ahead = FAR, s.splits = 1;
    return s;
}

// Table entry of a block of rows: its sequence's first query, number of queries, number of keys,
// and first key row or the offset of its page table; then the block's first row. An unused entry is
// all zeros (no queries): the block reads the entry and returns. So do blocks of parts beyond a
// sequence's keys.
constexpr uint ENTRY = 5;

// Parts of split keys are multiples of this. As in tables.rs.
constexpr int PART = 64;
// Up to this many keys there is one part: joining would take as long as reading them. As
// MAX_UNSPLIT_KEYS in keys.rs.
constexpr int ALONE = 128;

struct Task {
    // The sequence's first query, the block's first row in the sequence, and its rows. A row is a
    // query of one head.
    uint token, row, rows;
    // KV head, the first if the block takes several.
    uint head;
    // Position of the sequence's first query among its keys.
    int place;
    uint base;
    // The keys of this part, and the number of parts of the block.
    int start, end;
    uint parts, part;

    // The query of row r. Most models have as many KV heads as heads of q, and divisions are slow.
    __device__ __forceinline__ uint query_of(uint r, const Shape &s) const {
        return s.group == 1 ? row + r : (row + r) / s.group;
    }
    __device__ __forceinline__ int place_of(uint r, const Shape &s) const { return place + int(query_of(r, s)); }
    __device__ __forceinline__ uint token_of(uint r, const Shape &s) const { return token + query_of(r, s); }
    __device__ __forceinline__ uint head_of(uint r, const Shape &s) const {
        return head * s.group + row + r - query_of(r, s) * s.group;
    }
    // Offset of row r in y.
    __device__ __forceinline__ size_t line_of(uint r, const Shape &s) const {
        return (size_t(token_of(r, s)) * s.heads + head_of(r, s)) * s.size;
    }
    // The row of k and v that holds key j.
    __device__ __forceinline__ uint key_row(int j, const Shape &s, const uint *table) const {
        if (s.page == 0) return base + uint(j);
        return table[base + uint(j) / s.page] * s.page + uint(j) % s.page;
    }
};

// Finds the task of this block of ROWS rows; false if there is nothing to do. Neighbouring blocks
// take neighbouring heads, which often share cache lines; then parts, then blocks of rows.
template <uint ROWS> __device__ __forceinline__ bool find_task(Task &t, const uint *table, const Shape &s) {
    const uint block = s.from_end ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const uint across = s.turns == 1 ? s.shared : s.shared / s.turns, index = block / across;
    t.head = block % across * s.turns;
    t.part = index % s.splits;
    const uint *entry = table + s.entries + size_t(index / s.splits) * ENTRY;
    t.token = entry[0];
    const uint queries = entry[1], all = queries * s.group;
    const int keys = int(entry[2]);
    t.base = entry[3];
    t.row = entry[4];
    if (t.row >= all) return false;
    t.rows = min(ROWS, all - t.row);
    t.place = s.at_end ? max(keys - int(queries), 0) : 0;
    const int from = max(t.place_of(0, s) - s.back, 0);
    const int to = min(t.place_of(t.rows - 1, s) + s.ahead + 1, keys);
    const int count = max(to - from, 0);
    // Even parts, whatever this sequence's length relative to the longest.
    const int even = (count + int(s.splits) - 1) / int(s.splits);
    const int step = s.splits == 1 || count <= ALONE ? max(count, 1) : (even + PART - 1) / PART * PART;
    t.parts = s.splits == 1 ? 1 : uint(max((count + step - 1) / step, 1));
    t.start = from + int(t.part) * step;
    t.end = min(t.start + step, max(to, from));
    return t.part < t.parts;
}

// 2^x for x ≤ 0 to about two units in the last place of f32, far below the rounding of a result to
// 16 bits; 0 below −126. NaN stays NaN.
__device__ __forceinline__ float exp2_near(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The value subtracted from scores: if no key was visible the maximum is −∞, and must not produce
// NaN.
__device__ __forceinline__ float below(float top) { return top == -INFINITY ? 0.0f : top; }

// Applies soft cap and bias to a scaled score of key j.
__device__ __forceinline__ float finish_score(float x, int j, int place, uint head, const Shape &s, const uint *table) {
    if (s.cap != 0.0f) x = s.cap * tanhf(x / s.cap);
    if (s.added == ADDED_ALIBI) {
        x -= __uint_as_float(table[s.bias + head]) * float(abs(j - place));
    } else if (s.added == ADDED_TABLE) {
        const int distance = min(max(j - place, -s.reach), s.reach) + s.reach;
        x += __uint_as_float(table[s.bias + head * uint(2 * s.reach + 1) + uint(distance)]);
    }
    return x;
}
