// cache[rows[i]] = x[i], rounded to the cache's format; and cache[to[i]] = cache[from[i]], bit by bit.
//
// A row beyond the cache, which nobody may send, is not written: it would be another's.

struct Heads {
    // Elements of a head of x; from one token to the next, and from one head to the next.
    uint heads;
    uint size;
    uint token;
    uint head;
    // Rows of the cache.
    uint held;
};

// Floats: a thread writes four neighbours of a head.
template <typename T, typename C>
[[kernel]] void store(device const T *x [[buffer(0)]], device const uint *rows [[buffer(1)]],
    device C *cache [[buffer(2)]], constant Heads &p [[buffer(3)]], uint3 at [[thread_position_in_grid]]) {
    uint share = (p.size + 3) / 4;
    uint head = at.x / share;
    uint row = rows[at.y];
    if (head >= p.heads || row >= p.held) {
        return;
    }
    uint i = 4 * (at.x % share);
    x += ulong(at.y) * ulong(p.token) + ulong(head) * ulong(p.head);
    cache += (ulong(row) * ulong(p.heads) + ulong(head)) * ulong(p.size);
    put_four<C>(cache, i, p.size, four_at<T>(x, i, p.size, 0.0f));
}
#define STORE(T, NAME) \
KERNEL("store_" NAME "_in_f32", store<T, float>) \
KERNEL("store_" NAME "_in_f16", store<T, half>) \
KERNEL("store_" NAME "_in_bf16", store<T, bfloat>)
STORE(float, "f32")
STORE(half, "f16")
STORE(bfloat, "bf16")

// Elements that share a scale, and threads that share them: four elements each.
constant uint BLOCK = 32;
constant uint SHARERS = 8;

// q8_0: codes of a signed byte, a scale in f16 for 32 of them.
template <typename T>
[[kernel]] void store_blocks(device const T *x [[buffer(0)]], device const uint *rows [[buffer(1)]],
    device uchar *codes [[buffer(2)]], device half *scales [[buffer(3)]], constant Heads &p [[buffer(4)]],
    uint3 at [[thread_position_in_grid]]) {
    uint share = p.size / 4;
    uint head = at.x / share;
    uint i = 4 * (at.x % share);
    float4 v = float4(0.0f);
    // Nobody leaves yet: threads of a SIMD-group look at each other's elements.
    if (head < p.heads) {
        v = four_at<T>(x + ulong(at.y) * ulong(p.token) + ulong(head) * ulong(p.head), i, p.size, 0.0f);
    }
    bool is_finite = isfinite(v[0]) && isfinite(v[1]) && isfinite(v[2]) && isfinite(v[3]);
    float most = max(max(fabs(v[0]), fabs(v[1])), max(fabs(v[2]), fabs(v[3])));
    most = is_finite ? most : INFINITY;
    for (ushort apart = 1; apart < SHARERS; apart *= 2) {
        most = max(most, simd_shuffle_xor(most, apart));
    }
    uint row = rows[at.y];
    if (head >= p.heads || row >= p.held) {
        return;
    }
    // What is not finite has no code; the scale tells of it, so that nobody takes the block for numbers.
    float d = isinf(most) ? 0.0f : most / 127.0f;
    float inverse = d == 0.0f ? 0.0f : 1.0f / d;
    ulong first = (ulong(row) * ulong(p.heads) + ulong(head)) * ulong(p.size) + ulong(i);
    for (uint j = 0; j < 4; j++) {
        codes[first + j] = isinf(most) ? uchar(0) : uchar(as_type<uint>(int(round(v[j] * inverse))) & 0xffu);
    }
    if (i % BLOCK == 0) {
        scales[first / BLOCK] = isinf(most) ? half(NAN) : half(d);
    }
}
FLOATS(store_blocks)

struct Copies {
    // Of a row, and rows.
    uint words;
    uint held;
    uint copies;
};

// Rows within the cache, as words of any meaning. A thread has one word of all rows, and so copies one row after another.
template <typename W>
[[kernel]] void store_copies(device W *cache [[buffer(0)]], device const uint *from [[buffer(1)]],
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
KERNEL("store_copies_4", store_copies<uint>)
KERNEL("store_copies_2", store_copies<ushort>)
