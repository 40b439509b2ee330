// How vectors come to threadgroup memory, and products of those there.

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
// further than the nearest. Each SIMD-group that `meets` multiplies eight rows, or keys, with all; every pair of one that `sees`
// then takes what it asks for: that of this lane's first key is in `met`, and of its next ones `step` on each.
template <typename S, uint D, uint N>
METAL_FUNC void add_positions(thread float *x, thread simdgroup_matrix<S, 8, 8> *m, bool meets, bool sees,
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
            x[b] += sees && at >= 0 && at < int(N) ? met[b * step + uint(at)] : 0.0f;
        }
    }
}
