// Writes the KV cache: keys[rows[i]] = k[i] and values[rows[i]] = v[i], rounded to the cache's
// format, in one dispatch; if TURNS, k and queries are rotated first, as in `rotary`. Also
// cache[to[i]] = cache[from[i]], bit by bit.
//
// A row beyond the cache, which callers must not send, is not written: it would overwrite other
// data.

constant bool TURNS [[function_constant(0)]];

struct Heads {
    // Heads of queries (0 unless they are rotated), and heads of keys and of values; elements of
    // each.
    uint queries;
    uint heads;
    uint size;
    // Elements from one token of queries, keys and values to the next, and from one head to the
    // next.
    uint apart[3][2];
    // Rows of the cache.
    uint held;
    // Rotated pairs of a head, and positions; a position beyond them, which callers must not send,
    // counts as the last.
    uint pairs;
    uint positions;
};

// A thread's work: four neighbours of a head, from i on. Heads of queries come first, then those of
// keys and of values.
constant uint QUERIES = 0;
constant uint KEYS = 1;
constant uint VALUES = 2;
constant uint NOTHING = 3;
struct Share {
    uint of;
    uint head;
    uint i;
};

METAL_FUNC Share share_of(constant Heads &p, uint x) {
    uint fours = (p.size + 3) / 4;
    uint head = x / fours;
    Share s;
    s.i = 4 * (x % fours);
    s.of = QUERIES;
    s.head = head;
    if (head >= p.queries) {
        uint kept = (head - p.queries) / p.heads;
        s.of = kept == 0 ? KEYS : kept == 1 ? VALUES : NOTHING;
        s.head = (head - p.queries) % p.heads;
    }
    return s;
}

// Rotates the four elements in f32 and rounds to T. Other threads read the same elements at the
// same time, as their partners: memory delivers them once.
template <typename T>
METAL_FUNC float4 four_of(Share s, uint at, device const T *q, device const T *k, device const T *v,
    device const uint *positions, device const float *cosines, device const float *sines, constant Heads &p) {
    device const T *x = s.of == QUERIES ? q : s.of == KEYS ? k : v;
    x += ulong(at) * ulong(p.apart[s.of][0]) + ulong(s.head) * ulong(p.apart[s.of][1]);
    float4 four = four_at<T>(x, s.i, p.size, 0.0f);
    if (!TURNS || s.of == VALUES || s.i >= 2 * p.pairs) {
        return four;
    }
    ulong row = ulong(min(positions[at], p.positions - 1)) * ulong(p.pairs);
    cosines += row;
    sines += row;
    if (p.pairs % 4 == 0) {
        uint pair = s.i % p.pairs;
        float4 c = four_at<float>(cosines, pair, p.pairs, 0.0f);
        float4 t = four_at<float>(sines, pair, p.pairs, 0.0f);
        bool is_first = s.i < p.pairs;
        float4 other = four_at<T>(is_first ? x + p.pairs : x, pair, p.pairs, 0.0f);
        return rounded<T>(is_first ? four * c - other * t : four * c + other * t);
    }
    // The four may straddle the halves, or the end of the rotated part.
    for (uint j = 0; j < 4; j++) {
        uint i = s.i + j;
        if (i < p.pairs) {
            four[j] = four[j] * cosines[i] - float(x[i + p.pairs]) * sines[i];
        } else if (i < 2 * p.pairs) {
            four[j] = four[j] * cosines[i - p.pairs] + float(x[i - p.pairs]) * sines[i - p.pairs];
        }
    }
    return rounded<T>(four);
}

// Writes the four to their head of the queries.
template <typename T>
METAL_FUNC void put_query(device T *y, uint at, Share s, constant Heads &p, float4 four) {
    put_four<T>(y + (ulong(at) * ulong(p.queries) + ulong(s.head)) * ulong(p.size), s.i, p.size, four);
}

template <typename T, typename C>
[[kernel]] void kv_write(device const T *q [[buffer(0)]], device const T *k [[buffer(1)]], device const T *v [[buffer(2)]],
    device const uint *positions [[buffer(3)]], device const float *cosines [[buffer(4)]],
    device const float *sines [[buffer(5)]], device const uint *rows [[buffer(6)]], device T *y [[buffer(7)]],
    device C *keys [[buffer(8)]], device C *values [[buffer(9)]], constant Heads &p [[buffer(10)]],
    uint3 at [[thread_position_in_grid]]) {
    Share s = share_of(p, at.x);
    if (s.of == NOTHING) {
        return;
    }
    float4 four = four_of<T>(s, at.y, q, k, v, positions, cosines, sines, p);
    if (s.of == QUERIES) {
        put_query<T>(y, at.y, s, p, four);
        return;
    }
    uint row = rows[at.y];
    if (row >= p.held) {
        return;
    }
    device C *cache = s.of == KEYS ? keys : values;
    put_four<C>(cache + (ulong(row) * ulong(p.heads) + ulong(s.head)) * ulong(p.size), s.i, p.size, four);
}
#define STORE(T, NAME) \
KERNEL("kv_write_" NAME "_in_f32", kv_write<T, float>) \
KERNEL("kv_write_" NAME "_in_f16", kv_write<T, half>) \
KERNEL("kv_write_" NAME "_in_bf16", kv_write<T, bfloat>)
STORE(float, "f32")
STORE(half, "f16")
STORE(bfloat, "bf16")

// Elements per quantization scale, and threads that share a block: four elements each.
constant uint BLOCK = 32;
constant uint SHARERS = 8;

// q8_0: signed byte codes, an f16 scale per 32 of them.
template <typename T>
[[kernel]] void kv_write_blocks(device const T *q [[buffer(0)]], device const T *k [[buffer(1)]],
    device const T *v [[buffer(2)]], device const uint *positions [[buffer(3)]],
    device const float *cosines [[buffer(4)]], device const float *sines [[buffer(5)]],
    device const uint *rows [[buffer(6)]], device T *y [[buffer(7)]], device uchar *keys [[buffer(8)]],
    device uchar *values [[buffer(9)]], device half *key_scales [[buffer(10)]],
    device half *value_scales [[buffer(11)]], constant Heads &p [[buffer(12)]],
    uint3 at [[thread_position_in_grid]]) {
    Share s = share_of(p, at.x);
    float4 four = float4(0.0f);
    // No early return: threads of a SIMD-group exchange their elements.
    if (s.of != NOTHING) {
        four = four_of<T>(s, at.y, q, k, v, positions, cosines, sines, p);
    }
    bool is_finite = isfinite(four[0]) && isfinite(four[1]) && isfinite(four[2]) && isfinite(four[3]);
    float most = max(max(fabs(four[0]), fabs(four[1])), max(fabs(four[2]), fabs(four[3])));
    most = is_finite ? most : INFINITY;
    for (ushort apart = 1; apart < SHARERS; apart *= 2) {
        most = max(most, simd_shuffle_xor(most, apart));
    }
    if (s.of == NOTHING) {
        return;
    }
    if (s.of == QUERIES) {
        put_query<T>(y, at.y, s, p, four);
        return;
    }
    uint row = rows[at.y];
    if (row >= p.held) {
        return;
    }
    device uchar *codes = s.of == KEYS ? keys : values;
    device half *scales = s.of == KEYS ? key_scales : value_scales;
    // A value that is not finite has no code: the scale becomes NaN, so that the error shows.
    float d = most / 127.0f;
    float inverse = d == 0.0f ? 0.0f : 1.0f / d;
    ulong first = (ulong(row) * ulong(p.heads) + ulong(s.head)) * ulong(p.size) + ulong(s.i);
    for (uint j = 0; j < 4; j++) {
        codes[first + j] = isinf(most) ? uchar(0) : uchar(as_type<uint>(int(round(four[j] * inverse))) & 0xffu);
    }
    if (s.i % BLOCK == 0) {
        scales[first / BLOCK] = isinf(most) ? half(NAN) : half(d);
    }
}
FLOATS(kv_write_blocks)

struct Copies {
    // Words of a row, and rows.
    uint words;
    uint held;
    uint copies;
};

// Copies rows within the cache, as untyped words. A thread has one word of all rows, and so copies
// one row after another.
template <typename W>
[[kernel]] void kv_write_copies(device W *cache [[buffer(0)]], device const uint *from [[buffer(1)]],
    device const uint *to [[buffer(2)]], constant Copies &p [[buffer(3)]], uint3 at [[thread_position_in_grid]]) {
    if (at.x >= p.words) {
        return;
    }
    for (uint i = 0; i < p.copies; i++) {
        uint source = from[i];
        uint target = to[i];
        if (source < p.held && target < p.held) {
            cache[ulong(target) * ulong(p.words) + ulong(at.x)] = cache[ulong(source) * ulong(p.words) + ulong(at.x)];
        }
    }
}
KERNEL("kv_write_copies_4", kv_write_copies<uint>)
KERNEL("kv_write_copies_2", kv_write_copies<ushort>)
