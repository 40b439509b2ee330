// Writes the KV cache: keys[rows[i]] = k[i] and values[rows[i]] = v[i], rounded to the cache's
// format, in one launch; if positions are given, k and queries are rotated first, as in `rotary`.
// Also cache[to[i]] = cache[from[i]], bit by bit.
//
// A row beyond the cache, which callers must not send, is not written: it would overwrite other
// data.
#include "rotary/rotate.cuh"

struct Heads {
    // Heads of queries (0 unless they are rotated), and heads of keys and of values; elements of
    // each.
    uint queries, heads, size;
    // Elements from one token of queries, keys and values to the next, and from one head to the
    // next.
    uint strides[3][2];
    // Rows of the cache.
    uint cache_rows;
    // Rotated pairs of a head, and positions; a position beyond them, which callers must not send,
    // counts as the last.
    uint pairs, positions;
};

template <typename T> struct Args {
    const T *q, *k, *v;
    const uint *positions;
    const float *cosines, *sines;
    const uint *rows;
    T *y;
};

// A thread's work: N neighbours of a head, from i on. Heads of queries come first, then those of
// keys and of values.
enum Of : uint { QUERIES, KEYS, VALUES, NOTHING };
struct Share {
    uint of, head, i;
};

template <int N> __device__ __forceinline__ Share share_of(const Heads &p) {
    const uint runs = p.size / N, at = blockIdx.y * blockDim.x + threadIdx.x;
    const uint head = at / runs, i = at % runs * N;
    if (head < p.queries) return {QUERIES, head, i};
    const uint kept = head - p.queries;
    return {kept < p.heads ? KEYS : kept < 2 * p.heads ? VALUES : NOTHING, kept % p.heads, i};
}

// Rotates the N elements in f32 and rounds to T. Other threads read the same elements at the same
// time, as their partners: memory delivers them once. A half of the rotated part consists of whole
// runs, so that all elements of a run are in one half.
template <typename T, int N> __device__ __forceinline__ void take(float (&v)[N], Share s, const Args<T> &g, const Heads &p) {
    const uint token = blockIdx.x;
    const T *x = s.of == QUERIES ? g.q : s.of == KEYS ? g.k : g.v;
    // Not indexed by runtime values: that would move the array to local memory.
    const uint step = s.of == QUERIES ? p.strides[0][0] : s.of == KEYS ? p.strides[1][0] : p.strides[2][0];
    const uint head = s.of == QUERIES ? p.strides[0][1] : s.of == KEYS ? p.strides[1][1] : p.strides[2][1];
    x += size_t(token) * step + size_t(s.head) * head;
    read<T, N>(v, x + s.i);
    if (!g.positions || s.of == VALUES || s.i >= 2 * p.pairs) return;
    const size_t row = size_t(min(g.positions[token], p.positions - 1)) * p.pairs;
    const bool is_first = s.i < p.pairs;
    const uint pair = is_first ? s.i : s.i - p.pairs;
    float other[N], c[N], t[N];
    read<T, N>(other, is_first ? x + p.pairs + pair : x + pair);
    read<float, N>(c, g.cosines + row + pair);
    read<float, N>(t, g.sines + row + pair);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float rotated = is_first ? rotated_first(v[j], other[j], c[j], t[j]) : rotated_second(other[j], v[j], c[j], t[j]);
        v[j] = wide(narrow<T>(rotated));
    }
}

template <typename T, int N>
__device__ __forceinline__ void put_query(const float (&v)[N], Share s, const Args<T> &g, const Heads &p) {
    write<T, N>(g.y + (size_t(blockIdx.x) * p.queries + s.head) * p.size + s.i, v);
}

template <typename T, typename C, int N> __device__ void kv_write(const Args<T> &g, C *keys, C *values, const Heads &p) {
    const Share s = share_of<N>(p);
    if (s.of == NOTHING) return;
    float v[N];
    take<T, N>(v, s, g, p);
    if (s.of == QUERIES) return put_query<T, N>(v, s, g, p);
    const uint row = g.rows[blockIdx.x];
    if (row >= p.cache_rows) return;
    write<C, N>((s.of == KEYS ? keys : values) + (size_t(row) * p.heads + s.head) * p.size + s.i, v);
}

// Elements per quantization scale.
constexpr uint BLOCK = 32;

// q8_0: signed byte codes, an f16 scale per 32 of them, rounded as on the CPU. Neighbours in a warp
// share a block.
template <typename T, int N>
__device__ void kv_write_blocks(const Args<T> &g, uint8_t *keys, uint8_t *values, half_t *key_scales, half_t *value_scales,
    const Heads &p) {
    const Share s = share_of<N>(p);
    float v[N] = {};
    // No early return: lanes exchange their elements.
    if (s.of != NOTHING) take<T, N>(v, s, g, p);
    float most = 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++) most = fmaxf(most, isfinite(v[j]) ? fabsf(v[j]) : INFINITY);
#pragma unroll
    for (int apart = 1; apart < int(BLOCK) / N; apart *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, apart));
    if (s.of == NOTHING) return;
    if (s.of == QUERIES) return put_query<T, N>(v, s, g, p);
    const uint row = g.rows[blockIdx.x];
    if (row >= p.cache_rows) return;
    // A value that is not finite has no code: the scale becomes NaN, so that the error shows.
    const bool is_sound = most < INFINITY;
    const float d = __fdiv_rn(most, 127.0f), inverse = d == 0.0f || !is_sound ? 0.0f : __frcp_rn(d);
    const size_t first = (size_t(row) * p.heads + s.head) * p.size + s.i;
    Run<uint8_t, N> codes;
#pragma unroll
    for (int j = 0; j < N; j++) {
        // Rounds half away from zero. The bounds are for steps so small that their reciprocal is
        // infinite.
        const int code = is_sound ? min(max(int(roundf(v[j] * inverse)), -128), 127) : 0;
        codes.of[j] = uint8_t(code);
    }
    put<uint8_t, N>((s.of == KEYS ? keys : values) + first, codes);
    if (s.i % BLOCK == 0) (s.of == KEYS ? key_scales : value_scales)[first / BLOCK] = __float2half_rn(is_sound ? d : NAN);
}

#define PARAMETERS(T) const T *q, const T *k, const T *v, const uint *positions, const float *cosines, const float *sines, \
    const uint *rows, T *y, uint queries, uint heads, uint size, uint q_token, uint q_head, uint k_token, uint k_head, uint v_token, \
    uint v_head, uint cache_rows, uint pairs, uint table
#define ARGS(T) Args<T>{q, k, v, positions, cosines, sines, rows, y}
#define HEADS Heads{queries, heads, size, {{q_token, q_head}, {k_token, k_head}, {v_token, v_head}}, cache_rows, pairs, table}
#define FLOATS_IN(NAME, T, KEPT, C, N, KIND) \
    extern "C" __global__ void kv_write_##KIND##_##NAME##_in_##KEPT(C *keys, C *values, PARAMETERS(T)) { \
        grid_dependency_sync(); \
        kv_write<T, C, N>(ARGS(T), keys, values, HEADS); \
    }
#define BLOCKS_IN(NAME, T, N, KIND) \
    extern "C" __global__ void kv_write_##KIND##_##NAME##_in_q8_0( \
        uint8_t *keys, uint8_t *values, half_t *key_scales, half_t *value_scales, PARAMETERS(T)) { \
        grid_dependency_sync(); \
        kv_write_blocks<T, N>(ARGS(T), keys, values, key_scales, value_scales, HEADS); \
    }
#define ALL(NAME, T, N, KIND) \
    FLOATS_IN(NAME, T, f32, float, N, KIND) \
    FLOATS_IN(NAME, T, f16, half_t, N, KIND) \
    FLOATS_IN(NAME, T, bf16, bhalf_t, N, KIND) \
    BLOCKS_IN(NAME, T, N, KIND)
// Whole runs, and any size.
#define STORE(NAME, T) ALL(NAME, T, SIXTEEN<T>, aligned) ALL(NAME, T, 1, unaligned)
FORMATS(STORE)

// Copies that a thread has in flight.
constexpr int AT_ONCE = 8;

// Copies rows within the cache, as untyped words. A thread has one word of all rows, and so copies
// one row after another, or several at once if none of them is a target before it is a source.
template <typename W> __device__ void copies(W *cache, const uint *from, const uint *to, uint words, uint cache_rows, uint count) {
    const uint word = blockIdx.x * blockDim.x + threadIdx.x;
    if (word >= words) return;
    cache += word;
    auto at = [&](uint row) -> W & { return cache[size_t(row) * words]; };
    uint i = 0;
    for (; i + AT_ONCE <= count; i += AT_ONCE) {
        uint source[AT_ONCE], target[AT_ONCE];
        bool is_free = true;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            source[j] = from[i + j];
            target[j] = to[i + j];
            is_free &= source[j] < cache_rows && target[j] < cache_rows;
#pragma unroll
            for (int earlier = 0; earlier < j; earlier++) is_free &= target[earlier] != source[j];
        }
        if (!is_free) break;
        W kept[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) kept[j] = at(source[j]);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) at(target[j]) = kept[j];
    }
    for (; i < count; i++) {
        const uint source = from[i], target = to[i];
        if (source < cache_rows && target < cache_rows) at(target) = at(source);
    }
}
#define COPIES(BYTES, W) \
    extern "C" __global__ void kv_write_copies_##BYTES(W *cache, const uint *from, const uint *to, uint words, uint cache_rows, uint count) { \
        grid_dependency_sync(); \
        copies<W>(cache, from, to, words, cache_rows, count); \
    }
COPIES(16, uint4)
COPIES(4, uint)
COPIES(2, ushort)
