// Rotary position embedding: y1 = x1 * cos - x2 * sin, y2 = x2 * cos + x1 * sin for elements half
// the rotated part apart, in f32 with one rounding. Elements after the rotated part are copied. A
// thread computes four neighbours of the first half and their partners, or copies four.

struct Heads {
    uint heads;
    uint size;
    // Elements from one token of x to the next, and from one head to the next.
    uint token;
    uint head;
    // Rotated pairs of a head, and positions; a position beyond them, which callers must not send,
    // counts as the last.
    uint pairs;
    uint positions;
    // Threads of a head: for its pairs, and in all.
    uint turning;
    uint threads;
};

template <typename T>
[[kernel]] void rotary(device const T *x [[buffer(0)]], device const uint *positions [[buffer(1)]],
    device const float *cosines [[buffer(2)]], device const float *sines [[buffer(3)]], device T *y [[buffer(4)]],
    constant Heads &p [[buffer(5)]], uint3 at [[thread_position_in_grid]]) {
    uint head = at.x / p.threads;
    if (head >= p.heads) {
        return;
    }
    x += ulong(at.y) * ulong(p.token) + ulong(head) * ulong(p.head);
    y += (ulong(at.y) * ulong(p.heads) + ulong(head)) * ulong(p.size);
    uint share = at.x % p.threads;
    if (share >= p.turning) {
        uint i = 2 * p.pairs + 4 * (share - p.turning);
        put_four<T>(y, i, p.size, four_at<T>(x, i, p.size, 0.0f));
        return;
    }
    ulong row = ulong(min(positions[at.y], p.positions - 1)) * ulong(p.pairs);
    uint i = 4 * share;
    float4 c = four_at<float>(cosines + row, i, p.pairs, 0.0f);
    float4 s = four_at<float>(sines + row, i, p.pairs, 0.0f);
    float4 a = four_at<T>(x, i, p.pairs, 0.0f);
    float4 b = four_at<T>(x + p.pairs, i, p.pairs, 0.0f);
    put_four<T>(y, i, p.pairs, a * c - b * s);
    put_four<T>(y + p.pairs, i, p.pairs, b * c + a * s);
}
FLOATS(rotary)
