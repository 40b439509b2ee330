// Staging of vectors in threadgroup memory, and products of staged vectors.

// Reads four elements, zeros beyond `left`.
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
    // Q8: blocks of 32 codes with a scale each; both are contiguous.
    return four<char>(from, at, left) * float(scales[at / 32]);
}

// Stages N vectors, from number `first` on, in threadgroup memory, zero-padded to D elements.
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

// Products of eight vectors with 8 · `blocks` staged ones, at most N, written to the tile.
template <typename S, uint D, uint N>
METAL_FUNC void multiply_staged(thread simdgroup_matrix<S, 8, 8> *m, threadgroup const S *staged, uint blocks,
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

// Distances of a block's rows and keys: the smallest, the offset of this lane's row and first key
// from it, and where this SIMD-group's products are.
struct Pairs {
    int nearest;
    int further;
    threadgroup float *tile;
    uint tid;
};

// Adds the products of rows, or keys, with the positions of their distances to the scores. The
// distance of row r and key c is r + N − 1 − c above the nearest. A SIMD-group with `multiplies`
// set multiplies eight rows, or keys, with all positions. Then each pair of a row and a key selects
// its product, in SIMD-groups with `any_visible` set: that of this lane's first key is in
// `products`, and the next ones follow at intervals of `step`.
template <typename S, uint D, uint N>
METAL_FUNC void add_positions(thread float *x, thread simdgroup_matrix<S, 8, 8> *m, bool multiplies, bool any_visible,
    threadgroup const float *products, uint step, Pairs pairs, threadgroup vec<S, 4> *staging, device const uchar *table,
    Task t, constant Shape &p, ushort kind) {
    for (uint piece = 0; piece < ROWS + N - 1; piece += N) {
        BARRIER; // the staged vectors and `products` have been read
        stage<S, D, N>(staging, table, (device const half *)table, Q_FORMAT, t, p, kind, pairs.nearest + int(piece),
            pairs.tid);
        BARRIER;
        if (multiplies) {
            multiply_staged<S, D, N>(m, (threadgroup const S *)staging, N / 8, pairs.tile);
        }
        BARRIER;
        UNROLL
        for (uint b = 0; b < N / 4; b++) {
            int at = pairs.further - int(piece + b * 4);
            x[b] += any_visible && at >= 0 && at < int(N) ? products[b * step + uint(at)] : 0.0f;
        }
    }
}
