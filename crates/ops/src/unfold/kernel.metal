// y[t][c][j] = x[t + j - (width - 1) / 2][c], zero beyond the ends of t's sequence: a copy. A
// thread writes four adjacent elements of a token's windows, so that writes coalesce; it reads from
// a few rows, which adjacent threads read too.

struct Windows {
    // Elements of a token of x, and token stride.
    uint n;
    uint stride;
    uint width;
    uint sequences;
};

template <typename T>
[[kernel]] void unfold(device const T *x [[buffer(0)]], constant uint *starts [[buffer(1)]],
    device T *y [[buffer(2)]], constant Windows &p [[buffer(3)]], uint3 at [[thread_position_in_grid]]) {
    uint t = at.y;
    // Finds the sequence of the token: the last one that starts at or before it. After the starts
    // comes the number of tokens.
    uint low = 0;
    uint high = p.sequences;
    while (high - low > 1) {
        uint middle = (low + high) / 2;
        if (starts[middle] <= t) {
            low = middle;
        } else {
            high = middle;
        }
    }
    uint start = starts[low];
    uint end = starts[low + 1];
    uint whole = p.n * p.width;
    uint i = 4 * at.x;
    uint c = i / p.width;
    uint j = i % p.width;
    y += ulong(t) * ulong(whole);
    for (uint k = i; k < min(i + 4, whole); k++) {
        // Window positions before the first token would be negative, so half the width is added on
        // both sides.
        uint from = t + j;
        uint before = p.width / 2;
        bool is_inside = from >= start + before && from < end + before;
        y[k] = is_inside ? x[ulong(from - before) * ulong(p.stride) + ulong(c)] : T(0.0f);
        j++;
        if (j == p.width) {
            j = 0;
            c++;
        }
    }
}
FLOATS(unfold)
