// Attention in f32 throughout, without tensor cores: for q in f32, for keys in another format than
// q's, and for disentangled positions of large heads. A block of four warps has 32 rows; blocks of
// 32 keys are staged in shared memory as f32. A thread has two rows of four scores each; eight
// threads share two rows of scores and the same two rows of the result.
#include "attention/join.cuh"

constexpr uint THREADS = 128;
constexpr uint ROWS = 32;
constexpr uint KEYS = 32;

// Reads four elements, zeros beyond `left`.
template <typename E> __device__ __forceinline__ float4 four(const E *x, uint left) {
    return make_float4(wide(x[0]), left > 1 ? wide(x[1]) : 0.0f, left > 2 ? wide(x[2]) : 0.0f, left > 3 ? wide(x[3]) : 0.0f);
}
template <typename E> __device__ __forceinline__ float4 four_at_once(const E *x) {
    const Run<E, 4> run = load<E, 4>(x);
    return make_float4(wide(run.of[0]), wide(run.of[1]), wide(run.of[2]), wide(run.of[3]));
}

__device__ __forceinline__ float4 four_of(const void *x, const half_t *scales, uint format, size_t at, uint left, bool at_once) {
    if (format == FORMAT_F32) {
        const float *of = static_cast<const float *>(x) + at;
        return at_once ? four_at_once(of) : four(of, left);
    }
    if (format == FORMAT_F16) {
        const half_t *of = static_cast<const half_t *>(x) + at;
        return at_once ? four_at_once(of) : four(of, left);
    }
    if (format == FORMAT_BF16) {
        const bhalf_t *of = static_cast<const bhalf_t *>(x) + at;
        return at_once ? four_at_once(of) : four(of, left);
    }
    // Q8: blocks of 32 codes with a scale each; both are contiguous.
    const Run<int8_t, 4> codes = load<int8_t, 4>(static_cast<const int8_t *>(x) + at);
    const float scale = wide(scales[at / 32]);
    return make_float4(codes.of[0] * scale, codes.of[1] * scale, codes.of[2] * scale, codes.of[3] * scale);
}

template <typename T> constexpr uint FORMAT_OF = FORMAT_F32;
template <> constexpr uint FORMAT_OF<half_t> = FORMAT_F16;
template <> constexpr uint FORMAT_OF<bhalf_t> = FORMAT_BF16;

// Stages 32 vectors in shared memory, zero-padded to D elements. `line` sets the index of a
// vector's first element, or returns false if there is no such vector.
template <uint D, typename Line>
__device__ __forceinline__ void stage(float *to, const void *from, const half_t *scales, uint format, const Shape &s, Line line) {
    for (uint i = threadIdx.x; i < 32 * (D / 4); i += THREADS) {
        const uint r = i / (D / 4), c = i % (D / 4) * 4;
        size_t at = 0;
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (c < s.size && line(r, at)) x = four_of(from, scales, format, at + c, s.size - c, s.in_sixteens);
        *reinterpret_cast<float4 *>(to + r * (D + 4) + c) = x;
    }
}

__device__ __forceinline__ float dot(float sum, const float4 &a, const float4 &b) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Dot products of this thread's two vectors of `a` with its four vectors of `b`, which are eight
// apart.
template <uint D> __device__ __forceinline__ void thread_dots(float x[2][4], const float *a, const float *b) {
    const float *own = a + threadIdx.x / 8 * 2 * (D + 4), *other = b + threadIdx.x % 8 * (D + 4);
#pragma unroll
    for (uint h = 0; h < 2; h++) {
#pragma unroll
        for (uint n = 0; n < 4; n++) x[h][n] = 0.0f;
    }
#pragma unroll 4
    for (uint c = 0; c < D; c += 4) {
        float4 left[2], right[4];
#pragma unroll
        for (uint h = 0; h < 2; h++) left[h] = *reinterpret_cast<const float4 *>(own + h * (D + 4) + c);
#pragma unroll
        for (uint n = 0; n < 4; n++) right[n] = *reinterpret_cast<const float4 *>(other + n * 8 * (D + 4) + c);
#pragma unroll
        for (uint h = 0; h < 2; h++) {
#pragma unroll
            for (uint n = 0; n < 4; n++) x[h][n] = dot(x[h][n], left[h], right[n]);
        }
    }
}

// Adds to the scores the dot products of rows, or of keys, with the position vectors of their
// distances, 32 distances at a time. The distance of row r and key c is r + 31 − c more than that
// of the nearest pair.
template <typename T, uint D, bool OF_KEYS>
__device__ __forceinline__ void add_positions(float x[2][4], const float *own, float *staged, float *tile, const T *positions,
    Steps steps, int nearest, const Task &t, const Shape &s, const uint *table) {
    const uint r = threadIdx.x / 8 * 2, c = threadIdx.x % 8;
    for (uint piece = 0; piece < 64; piece += 32) {
        stage<D>(staged, positions, nullptr, FORMAT_OF<T>, s, [&](uint i, size_t &at) {
            // Distances of rows or keys beyond the last have no entry; their products are
            // discarded.
            const int entry = min(max(nearest + int(piece + i) + s.origin, 0), int(s.distance_count) - 1);
            at = steps.at(table[s.distances + uint(entry)], t.head);
            return true;
        });
        __syncthreads();
        float products[2][4];
        thread_dots<D>(products, own, staged);
#pragma unroll
        for (uint h = 0; h < 2; h++) {
#pragma unroll
            for (uint n = 0; n < 4; n++) tile[(r + h) * (KEYS + 1) + c + n * 8] = products[h][n];
        }
        __syncthreads();
#pragma unroll
        for (uint h = 0; h < 2; h++) {
#pragma unroll
            for (uint n = 0; n < 4; n++) {
                const int at = int(r + h + KEYS - 1) - int(c + n * 8) - int(piece);
                const uint line = OF_KEYS ? c + n * 8 : r + h;
                if (at >= 0 && at < 32) x[h][n] += tile[line * (KEYS + 1) + uint(at)];
            }
        }
        __syncthreads(); // tile and positions have been read
    }
}

template <typename T, uint D>
__device__ __forceinline__ void attend(const T *q, const void *k, const void *v, const half_t *k_scales, const half_t *v_scales,
    const T *position_keys, const T *position_queries, T *y, float *parts, const uint *table, const Shape &s) {
    constexpr uint PITCH = D + 4;
    extern __shared__ float4 memory[];
    __shared__ float tile[ROWS * (KEYS + 1)];
    float *qs = reinterpret_cast<float *>(memory), *staged = qs + ROWS * PITCH;
    float *positions = staged + KEYS * PITCH; // only with disentangled positions

    Task t;
    if (!find_task<ROWS>(t, table, s)) return;
    stage<D>(qs, q, nullptr, FORMAT_OF<T>, s, [&](uint r, size_t &at) {
        at = s.q.at(t.token_of(r, s), t.head_of(r, s));
        return r < t.rows;
    });

    const uint r = threadIdx.x / 8 * 2, c = threadIdx.x % 8;
    const int places[2] = {t.place_of(r, s), t.place_of(r + 1, s)};
    const uint heads[2] = {t.head_of(r, s), t.head_of(r + 1, s)};
    float o[2][D / 8] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    for (int first = t.start; first < t.end; first += int(KEYS)) {
        auto line_in = [&](Steps steps) {
            return [&, steps](uint i, size_t &at) {
                const int j = first + int(i);
                if (j >= t.end) return false;
                at = steps.at(t.key_row(j, s, table), t.head);
                return true;
            };
        };
        __syncthreads(); // values have arrived, and q the first time
        stage<D>(staged, k, k_scales, s.k_format, s, line_in(s.k));
        __syncthreads();
        float x[2][4];
        thread_dots<D>(x, qs, staged);
        const int nearest = t.place + int(t.row) - first - int(KEYS - 1);
        if (position_keys) {
            add_positions<T, D, false>(x, qs, positions, tile, position_keys, s.position_keys, nearest, t, s, table);
        }
        if (position_queries) {
            add_positions<T, D, true>(x, staged, positions, tile, position_queries, s.position_queries, nearest, t, s, table);
        }
#pragma unroll
        for (uint h = 0; h < 2; h++) {
            float largest = top[h];
#pragma unroll
            for (uint n = 0; n < 4; n++) {
                const int j = first + int(c + n * 8);
                const bool visible = j >= places[h] - s.back && j <= places[h] + s.ahead && j < t.end;
                x[h][n] = visible ? finish_score(x[h][n] * s.scale, j, places[h], heads[h], s, table) * LOG2E : -INFINITY;
                largest = fmaxf(largest, x[h][n]);
            }
#pragma unroll
            for (int step = 1; step < 8; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
            const float less = top[h] == largest ? 1.0f : exp2f(top[h] - below(largest));
            top[h] = largest;
            sum[h] *= less;
#pragma unroll
            for (uint i = 0; i < D / 8; i++) o[h][i] *= less;
#pragma unroll
            for (uint n = 0; n < 4; n++) {
                const float e = exp2f(x[h][n] - below(largest));
                sum[h] += e;
                tile[(r + h) * (KEYS + 1) + c + n * 8] = e;
            }
        }
        __syncthreads(); // keys have been read, and the warp's exponentials are written
        stage<D>(staged, v, v_scales, s.k_format, s, line_in(s.v));
        __syncthreads();
#pragma unroll 4
        for (uint j = 0; j < KEYS; j++) {
            const float e[2] = {tile[r * (KEYS + 1) + j], tile[(r + 1) * (KEYS + 1) + j]};
#pragma unroll
            for (uint i = 0; i < D / 32; i++) {
                const float4 value = *reinterpret_cast<const float4 *>(staged + j * PITCH + (c + i * 8) * 4);
#pragma unroll
                for (uint h = 0; h < 2; h++) {
                    o[h][4 * i] = fmaf(e[h], value.x, o[h][4 * i]);
                    o[h][4 * i + 1] = fmaf(e[h], value.y, o[h][4 * i + 1]);
                    o[h][4 * i + 2] = fmaf(e[h], value.z, o[h][4 * i + 2]);
                    o[h][4 * i + 3] = fmaf(e[h], value.w, o[h][4 * i + 3]);
                }
            }
        }
    }
#pragma unroll
    for (uint h = 0; h < 2; h++) {
#pragma unroll
        for (int step = 1; step < 8; step *= 2) sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], step);
        if (r + h >= t.rows) continue;
        const float over = sum[h] == 0.0f ? 0.0f : 1.0f / sum[h];
        const Part<ROWS> part(parts, s, blockIdx.x);
        T *line = y + t.line_of(r + h, s);
#pragma unroll
        for (uint i = 0; i < D / 8; i++) {
            const uint at = (c + i / 4 * 8) * 4 + i % 4;
            if (at >= s.size) continue;
            if (t.parts > 1) part.row(r + h)[at] = o[h][i];
            else line[at] = narrow<T>(o[h][i] * over);
        }
        if (t.parts > 1 && c == 0) *part.end(r + h) = make_float2(top[h], sum[h]);
    }
    if (t.parts > 1 && is_last(table, t, s)) join<T, ROWS>(parts, y, t, s);
}

#define SIMT(NAME, T, D) \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_simt_##NAME##_##D(const T *q, const void *k, const void *v, \
        const half_t *k_scales, const half_t *v_scales, const T *position_keys, const T *position_queries, T *y, float *parts, \
        const uint *table, SHAPE) { \
        grid_dependency_sync(); \
        attend<T, D>(q, k, v, k_scales, v_scales, position_keys, position_queries, y, parts, table, ARGS); \
    }
#define ATTENTION(NAME, T) \
    SIMT(NAME, T, 32) \
    SIMT(NAME, T, 64) \
    SIMT(NAME, T, 96) \
    SIMT(NAME, T, 128) \
    SIMT(NAME, T, 256)
FORMATS(ATTENTION)
