// What the kernels are told, and which rows and keys a block of threads has. The table says where rows are; how their keys are
// split each block finds from its number and the sequence's length, so that the same launch serves other lengths.
#pragma once
#include "launch/cuda/prelude.cuh"

// What k and v are in.
enum Format : uint { FORMAT_F32, FORMAT_F16, FORMAT_BF16, FORMAT_Q8 };
// What is added to the scores.
enum Added : uint { ADDED_NONE, ADDED_ALIBI, ADDED_TABLE };

// A distance that no query and key have, as in cuda.rs.
constexpr int FAR = 1 << 30;

constexpr float LOG2E = 1.4426950408889634f;

// Elements from one token to the next, and from one head to the next.
struct Steps {
    uint token, head;
    __device__ __forceinline__ size_t at(size_t row, uint of) const { return row * token + size_t(of) * head; }
};

struct Shape {
    // Of a head; heads of q, those of k and v, and how many of q's share one of them.
    uint size, heads, shared, group;
    Steps q, k, v, position_keys, position_queries;
    // Whether 16 bytes may be read at once everywhere.
    uint in_sixteens;
    uint k_format;
    // Rows of a page, or 0 where keys lie next to each other.
    uint page;
    // How many keys before its place a query sees, and how many after; and whether the last query is at the last key.
    int back, ahead;
    uint at_end;
    float scale;
    // Or 0.
    float cap;
    // Which bias, where its numbers are in the table, and the farthest distance that they tell apart.
    uint added, bias;
    int reach;
    // Where the rows of the tables of positions are by distance, how many, and which is that of distance 0.
    uint distances, distance_count;
    int origin;
    // Where the blocks of this launch are in the table, and how many parts the keys of each may have; where those count themselves.
    uint entries, splits, tickets;
    // Heads of k and v that a block takes one after another: 1 where keys are split.
    uint turns;
    // Whether blocks are counted from the last: see `back_and_forth` in call.rs.
    uint from_end;
};

#define SHAPE uint size, uint heads, uint shared, uint q_token, uint q_head, uint k_token, uint k_head, uint v_token, \
    uint v_head, uint pk_token, uint pk_head, uint pq_token, uint pq_head, uint in_sixteens, uint k_format, uint page, \
    int back, int ahead, uint at_end, float scale, float cap, uint added, uint bias, int reach, uint distances, \
    uint distance_count, int origin, uint entries, uint splits, uint tickets, uint turns, uint from_end
#define GIVEN Shape{size, heads, shared, heads / shared, {q_token, q_head}, {k_token, k_head}, {v_token, v_head}, \
    {pk_token, pk_head}, {pq_token, pq_head}, in_sixteens, k_format, page, back, ahead, at_end, scale, cap, added, bias, \
    reach, distances, distance_count, origin, entries, splits, tickets, turns, from_end}

// The same as the compiler is told it for what most encoders ask for, so that nothing is asked while it runs: heads of D elements, as
// many of k as of q, aligned and next to each other, all of which are seen as they are.
template <uint D> __device__ __forceinline__ Shape straight(Shape s) {
    s.size = D, s.shared = s.heads, s.group = 1, s.in_sixteens = 1, s.page = 0, s.at_end = 0, s.cap = 0.0f, s.added = ADDED_NONE;
    s.back = s.ahead = FAR, s.splits = 1;
    return s;
}

// What the table says of a block of rows: its sequence's first query, its queries, its keys, and its first key's row in k or where
// its pages are in the table; then the block's first row. A sequence without queries is a place that nobody has taken: an entry of
// zeros alone, of which nothing is read or written but the entry. Parts beyond a sequence's keys are nobody's either.
constexpr uint ENTRY = 5;

// Keys of which parts are multiples. As in tables.rs, this and the next.
constexpr int PART = 64;
// Keys up to which there is one part: joining would take as long as reading them.
constexpr int ALONE = 128;

struct Task {
    // The sequence's first query, the block's first row in the sequence, and its rows. A row is a query of one head.
    uint token, row, rows;
    // Of k and v, the first if there are several.
    uint head;
    // The place of the sequence's first query among its keys.
    int place;
    uint base;
    // The keys of this part, and how many parts the block has.
    int start, end;
    uint parts, part;

    // Which query of the sequence row r of the block is. Most models have as many heads of k as of q, and divisions are slow.
    __device__ __forceinline__ uint query_of(uint r, const Shape &s) const {
        return s.group == 1 ? row + r : (row + r) / s.group;
    }
    __device__ __forceinline__ int place_of(uint r, const Shape &s) const { return place + int(query_of(r, s)); }
    __device__ __forceinline__ uint token_of(uint r, const Shape &s) const { return token + query_of(r, s); }
    __device__ __forceinline__ uint head_of(uint r, const Shape &s) const {
        return head * s.group + row + r - query_of(r, s) * s.group;
    }
    // Where row r of the block begins in y.
    __device__ __forceinline__ size_t line_of(uint r, const Shape &s) const {
        return (size_t(token_of(r, s)) * s.heads + head_of(r, s)) * s.size;
    }
    // The row of k and v that holds key j.
    __device__ __forceinline__ uint key_row(int j, const Shape &s, const uint *table) const {
        if (s.page == 0) return base + uint(j);
        return table[base + uint(j) / s.page] * s.page + uint(j) % s.page;
    }
};

// The task of this block, if blocks have ROWS rows; false where there is nothing to do. Heads are the nearest neighbours, since
// theirs often lie in the same lines of memory; then parts, and blocks.
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
    // Even parts, however long this sequence is beside the longest.
    const int even = (count + int(s.splits) - 1) / int(s.splits);
    const int step = s.splits == 1 || count <= ALONE ? max(count, 1) : (even + PART - 1) / PART * PART;
    t.parts = s.splits == 1 ? 1 : uint(max((count + step - 1) / step, 1));
    t.start = from + int(t.part) * step;
    t.end = min(t.start + step, max(to, from));
    return t.part < t.parts;
}

// 2^x for x ≤ 0 to about two units in the last place of f32, which is far below the rounding of a result to 16 bits; 0 below
// −126. NaN stays NaN.
__device__ __forceinline__ float exp2_near(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What a score is measured from: where no key was seen the largest is −∞, and nothing may become NaN by it.
__device__ __forceinline__ float below(float top) { return top == -INFINITY ? 0.0f : top; }

// Cap and bias of a scaled score of key j for a row.
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
