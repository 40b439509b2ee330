// Precedes every kernel file: sums over a threadgroup, activations, and loads and stores.
//
// Kernels are written in a strict subset: explicit address spaces and casts, nothing beyond C++14.
// Compiled without fast math.
#include <metal_stdlib>
using namespace metal;

// Instantiates a kernel template under the name that the host looks up.
#define KERNEL(NAME, ...) template [[host_name(NAME)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;
// One instance for each format of the activations: name_f32, name_f16, name_bf16.
#define FLOATS(F) \
KERNEL(#F "_f32", F<float>) \
KERNEL(#F "_f16", F<half>) \
KERNEL(#F "_bf16", F<bfloat>)

// Threads of a SIMD-group.
constant uint LANES = 32;

// The sum over the threadgroup, in every thread. `part` has one float per SIMD-group, at most 32.
METAL_FUNC float group_sum(float v, threadgroup float *part, uint lane, uint simd, uint simds) {
    v = simd_sum(v);
    threadgroup_barrier(mem_flags::mem_threadgroup); // the parts of an earlier call have been read
    if (lane == 0) {
        part[simd] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < simds; i++) {
        total += part[i];
    }
    return total;
}

// The maximum over the threadgroup, in every thread; NaN if there is one.
METAL_FUNC float group_max(float v, threadgroup float *part, uint lane, uint simd, uint simds) {
    bool broken = simd_any(isnan(v));
    v = broken ? NAN : simd_max(v);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) {
        part[simd] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float largest = part[0];
    for (uint i = 1; i < simds; i++) {
        largest = part[i] > largest || isnan(part[i]) ? part[i] : largest;
    }
    return largest;
}

// erf within 4 ulp of 1: an odd rational function on [-4, 4]; beyond, it stays within an ulp of 1.
// Metal has none.
METAL_FUNC float erf_of(float v) {
    float x = clamp(v, -4.0f, 4.0f);
    float s = x * x;
    float p = -2.7261423e-10f;
    p = fma(p, s, 2.7706814e-8f);
    p = fma(p, s, -2.101024e-6f);
    p = fma(p, s, -5.6925064e-5f);
    p = fma(p, s, -7.3499063e-4f);
    p = fma(p, s, -2.9545998e-3f);
    p = fma(p, s, -1.6096033e-2f);
    float q = -1.4566072e-5f;
    q = fma(q, s, -2.1337406e-4f);
    q = fma(q, s, -1.682827e-3f);
    q = fma(q, s, -7.373329e-3f);
    q = fma(q, s, -1.4264739e-2f);
    return x * p / q;
}

METAL_FUNC float sigmoid_of(float x) {
    return 1.0f / (1.0f + precise::exp(-x));
}

// The activations, numbered as `Activation` in Rust.
constant ushort ACT_NONE = 0;
constant ushort ACT_GELU = 1;
constant ushort ACT_GELU_TANH = 2;
constant ushort ACT_QUICK_GELU = 3;
constant ushort ACT_RELU = 4;
constant ushort ACT_SILU = 5;
constant ushort ACT_SIGMOID = 6;
constant ushort ACT_TANH = 7;

METAL_FUNC float activate(float x, ushort kind) {
    if (kind == ACT_GELU) {
        // Below -6 the result is 0 to within 1e-8, but erf is an ulp short of -1, and x would
        // multiply that.
        float h = 0.5f * max(x, -6.0f);
        return isnan(x) ? x : fma(h, erf_of(max(x, -6.0f) * M_SQRT1_2_F), h);
    }
    if (kind == ACT_GELU_TANH) {
        float h = 0.5f * max(x, -6.0f);
        float v = max(x, -6.0f);
        return isnan(x) ? x : fma(h, precise::tanh(0.7978846f * fma(v * v * v, 0.044715f, v)), h);
    }
    if (kind == ACT_QUICK_GELU) {
        return x * sigmoid_of(1.702f * x);
    }
    if (kind == ACT_RELU) {
        return x < 0.0f ? 0.0f : x;
    }
    if (kind == ACT_SILU) {
        return x * sigmoid_of(x);
    }
    if (kind == ACT_SIGMOID) {
        return sigmoid_of(x);
    }
    if (kind == ACT_TANH) {
        return precise::tanh(x);
    }
    return x;
}

// Four adjacent elements of a row of n, from i on; `beyond` replaces those past its end. Written
// element by element, so that a row may have any alignment: the compiler combines the four
// accesses.
template <typename T>
METAL_FUNC float4 four_at(device const T *x, uint i, uint n, float beyond) {
    float4 v = float4(beyond);
    uint left = i < n ? n - i : 0;
    if (left >= 4) {
        return float4(float(x[i]), float(x[i + 1]), float(x[i + 2]), float(x[i + 3]));
    }
    if (left > 0) {
        v[0] = float(x[i]);
    }
    if (left > 1) {
        v[1] = float(x[i + 1]);
    }
    if (left > 2) {
        v[2] = float(x[i + 2]);
    }
    return v;
}

// Writes four adjacent elements, except those past the end of a row of n, each rounded to T.
template <typename T>
METAL_FUNC void put_four(device T *y, uint i, uint n, float4 v) {
    uint left = i < n ? n - i : 0;
    if (left >= 4) {
        y[i] = T(v[0]);
        y[i + 1] = T(v[1]);
        y[i + 2] = T(v[2]);
        y[i + 3] = T(v[3]);
        return;
    }
    if (left > 0) {
        y[i] = T(v[0]);
    }
    if (left > 1) {
        y[i + 1] = T(v[1]);
    }
    if (left > 2) {
        y[i + 2] = T(v[2]);
    }
}

// Four elements, each rounded to T.
template <typename T>
METAL_FUNC float4 rounded(float4 v) {
    return float4(float(T(v[0])), float(T(v[1])), float(T(v[2])), float(T(v[3])));
}

// Products x·Wᵀ, in two ways: few rows by SIMD-groups that run along rows of W, many by tiles. Both
// take a pointer to each of their rows, so that rows may be gathered. If there are fewer rows, rows
// beyond the last repeat it, and their results are not written.
template <typename T, int N> struct Rows {
    device const T *at[N];
};

// Dot products of R rows of W with M rows of x.
template <int R, int M> struct Dots {
    float of[R][M];
};

// Four aligned elements, read at once.
template <typename T>
METAL_FUNC float4 whole_four(device const T *x) {
    vec<T, 4> v = *(device const vec<T, 4> *)x;
    return float4(v);
}

// By one SIMD-group, with the result in every lane. W is read once. `fours`: every row is aligned
// to four elements, and k is a multiple of four.
template <typename W, typename X, int R, int M>
METAL_FUNC void dot_rows(thread Dots<R, M> &dots, thread const Rows<W, R> &w, thread const Rows<X, M> &x, uint k,
    bool fours, uint lane) {
    for (int r = 0; r < R; r++) {
        for (int m = 0; m < M; m++) {
            dots.of[r][m] = 0.0f;
        }
    }
    if (fours) {
        for (uint i = 4 * lane; i < k; i += 4 * LANES) {
            float4 b[R];
            #pragma unroll
            for (int r = 0; r < R; r++) {
                b[r] = whole_four<W>(w.at[r] + i);
            }
            #pragma unroll
            for (int m = 0; m < M; m++) {
                float4 a = whole_four<X>(x.at[m] + i);
                #pragma unroll
                for (int r = 0; r < R; r++) {
                    float sum = fma(a[0], b[r][0], dots.of[r][m]);
                    sum = fma(a[1], b[r][1], sum);
                    sum = fma(a[2], b[r][2], sum);
                    dots.of[r][m] = fma(a[3], b[r][3], sum);
                }
            }
        }
    } else {
        for (uint i = lane; i < k; i += LANES) {
            #pragma unroll
            for (int m = 0; m < M; m++) {
                float a = float(x.at[m][i]);
                #pragma unroll
                for (int r = 0; r < R; r++) {
                    dots.of[r][m] = fma(a, float(w.at[r][i]), dots.of[r][m]);
                }
            }
        }
    }
    #pragma unroll
    for (int r = 0; r < R; r++) {
        #pragma unroll
        for (int m = 0; m < M; m++) {
            dots.of[r][m] = simd_sum(dots.of[r][m]);
        }
    }
}

// Tiles: four SIMD-groups, two by two, compute 16·M rows of 16·N columns, each 8·M by 8·N of them.
// Threadgroup memory holds 64 bytes of the depth at a time, in rows of 80 bytes, so that adjacent
// rows are in different banks.
constant uint TILE_THREADS = 128;
// Row stride in elements of a tile with depth DEPTH.
#define TILE_STRIDE(T, DEPTH) (uint(DEPTH) + uint(16 / sizeof(T)))
template <typename T> struct Tile {
    enum : uint {
        DEPTH = 64 / sizeof(T),
        STRIDE = TILE_STRIDE(T, DEPTH),
        // Fours of a row, and rows that the threadgroup loads at once.
        FOURS = DEPTH / 4,
        AT_ONCE = 128 / FOURS
    };
};
// Size in float4s of the threadgroup memory of a tile: its rows of x and of W, or four strips.
#define TILE_SCRATCH(M, N) (16 * ((M) + (N)) * 5)
// The rows that a thread loads for 16·M.
#define TILE_ROWS(T, M) Rows<T, 16 * (M) / Tile<T>::AT_ONCE>

template <int M, int N> struct Sums {
    simdgroup_matrix<float, 8, 8> of[M][N];
};

// The index in the tile of a thread's i-th row.
template <typename T>
METAL_FUNC uint tile_row(uint tid, int i) {
    return tid / Tile<T>::FOURS + uint(i) * Tile<T>::AT_ONCE;
}

// 16·M rows from `first` on of a matrix of `rows` rows, `stride` elements apart.
template <typename T, int M>
METAL_FUNC void tile_rows(thread TILE_ROWS(T, M) &of, device const T *x, uint first, uint rows, uint stride, uint tid) {
    for (int i = 0; i < 16 * M / int(Tile<T>::AT_ONCE); i++) {
        of.at[i] = x + ulong(min(first + tile_row<T>(tid, i), rows - 1)) * ulong(stride);
    }
}

// Copies the rows from `from` on into a tile, with zeros from k on.
template <typename T, int P>
METAL_FUNC void tile_fetch(threadgroup T *tile, thread const Rows<T, P> &rows, uint from, uint k, bool fours, uint tid) {
    uint column = tid % Tile<T>::FOURS * 4;
    uint at = from + column;
    #pragma unroll
    for (int i = 0; i < P; i++) {
        vec<T, 4> v = vec<T, 4>(T(0));
        if (fours) {
            if (at < k) {
                v = *(device const vec<T, 4> *)(rows.at[i] + at);
            }
        } else {
            for (uint j = 0; j < 4; j++) {
                if (at + j < k) {
                    v[j] = rows.at[i][at + j];
                }
            }
        }
        *(threadgroup vec<T, 4> *)(tile + tile_row<T>(tid, i) * Tile<T>::STRIDE + column) = v;
    }
}

template <int M, int N>
METAL_FUNC void tile_begin(thread Sums<M, N> &sums) {
    #pragma unroll
    for (int i = 0; i < M; i++) {
        #pragma unroll
        for (int j = 0; j < N; j++) {
            sums.of[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
}

// Adds the products over DEPTH of the depth: 16·M rows of x and 16·N of W are in threadgroup
// memory.
template <typename T, int M, int N, uint DEPTH>
METAL_FUNC void tile_step(thread Sums<M, N> &sums, threadgroup const T *xs, threadgroup const T *ws, uint simd) {
    xs += simd / 2 * uint(8 * M) * TILE_STRIDE(T, DEPTH);
    ws += simd % 2 * uint(8 * N) * TILE_STRIDE(T, DEPTH);
    #pragma unroll
    for (uint d = 0; d < DEPTH; d += 8) {
        simdgroup_matrix<T, 8, 8> a[M];
        simdgroup_matrix<T, 8, 8> b[N];
        #pragma unroll
        for (int i = 0; i < M; i++) {
            simdgroup_load(a[i], xs + uint(8 * i) * TILE_STRIDE(T, DEPTH) + d, ulong(TILE_STRIDE(T, DEPTH)));
        }
        #pragma unroll
        for (int j = 0; j < N; j++) {
            simdgroup_load(b[j], ws + uint(8 * j) * TILE_STRIDE(T, DEPTH) + d, ulong(TILE_STRIDE(T, DEPTH)), ulong2(0, 0), true);
        }
        #pragma unroll
        for (int i = 0; i < M; i++) {
            #pragma unroll
            for (int j = 0; j < N; j++) {
                simdgroup_multiply_accumulate(sums.of[i][j], a[i], b[j], sums.of[i][j]);
            }
        }
    }
}

// The sums of a tile over a depth of k. Every thread of the group takes part; the threadgroup
// memory is free before and after.
template <typename T, int M, int N, int PX, int PW>
METAL_FUNC void tile_product(thread Sums<M, N> &sums, thread const Rows<T, PX> &x, thread const Rows<T, PW> &w, uint k,
    bool fours, threadgroup float4 *scratch, uint tid, uint simd) {
    threadgroup T *xs = (threadgroup T *)scratch;
    threadgroup T *ws = xs + 16 * M * Tile<T>::STRIDE;
    tile_begin<M, N>(sums);
    for (uint from = 0; from < k; from += Tile<T>::DEPTH) {
        tile_fetch<T, PX>(xs, x, from, k, fours, tid);
        tile_fetch<T, PW>(ws, w, from, k, fours, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        tile_step<T, M, N, uint(Tile<T>::DEPTH)>(sums, xs, ws, simd);
        // All threads have read the tiles: the next tiles, or strips, may overwrite them.
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Eight rows of a SIMD-group's sums in threadgroup memory, where lanes can find each element: rows
// of 8·N, `TILE_STRIP(N)` apart.
#define TILE_STRIP(N) (8 * (N) + 4)
template <int M, int N>
METAL_FUNC threadgroup const float *tile_strip(thread const Sums<M, N> &sums, int i, threadgroup float4 *scratch, uint simd) {
    threadgroup float *strip = (threadgroup float *)scratch + simd * uint(8 * TILE_STRIP(N));
    simdgroup_barrier(mem_flags::mem_threadgroup); // the previous strip has been read
    #pragma unroll
    for (int j = 0; j < N; j++) {
        simdgroup_store(sums.of[i][j], strip + 8 * j, ulong(TILE_STRIP(N)));
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    return strip;
}
