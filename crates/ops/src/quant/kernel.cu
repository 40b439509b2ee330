// Quantizes activations to 8 bits for products with quantized weights, and dequantizes rows of
// blocks to floats.
#include "quant/formats.cuh"
#include "quant/activations_q8.cuh"

// The scale of 32 elements is the largest divided by 127. Eight lanes have 32 elements, four each.
template <typename T> __device__ void round_rows(const T *x, uint8_t *to, uint rows, uint k, uint x_step, uint fours) {
    const size_t quads = size_t(rows) * (k / 4), i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const size_t at = i < quads ? i : quads - 1; // lanes beyond the end take part
    const size_t row = at / (k / 4), column = at % (k / 4) * 4;
    const T *from = x + row * x_step + column;
    float v[4];
    if (fours) {
        const Run<T, 4> run = load<T, 4>(from);
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = wide(run.of[j]);
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = wide(from[j]);
    }
    // Compared as integers, where NaN is larger than any number: then the scale and the result are
    // NaN too.
    uint bits = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) bits = max(bits, __float_as_uint(v[j]) & 0x7fffffffu);
#pragma unroll
    for (int step = 1; step < 8; step *= 2) bits = max(bits, __shfl_xor_sync(ALL_LANES, bits, step));
    const float largest = __uint_as_float(bits);
    // Below 1e-35 the reciprocal would overflow, and the elements contribute nothing to any sum.
    const float inverse = largest > 1e-35f ? 127.0f / largest : 0.0f;
    uint codes = 0;
    int sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int code = max(-127, min(127, __float2int_rn(v[j] * inverse)));
        codes |= uint(uint8_t(code)) << (8 * j);
        sum += code;
    }
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    if (i >= quads) return;
    const float scale = largest / 127.0f;
    float *scales = reinterpret_cast<float *>(to + size_t(rows) * k), *sums = scales + size_t(rows) * (k / 32);
    reinterpret_cast<uint *>(to)[at] = codes;
    if (at % 8 == 0) scales[at / 8] = scale;
    if (at % 4 == 0) sums[at / 4] = scale * float(sum);
}
#define ROUND(NAME, T) \
    extern "C" __global__ void quant_round_##NAME(const T *x, uint8_t *to, uint rows, uint k, uint x_step, uint fours) { \
        wait_for_earlier(); \
        round_rows<T>(x, to, rows, k, x_step, fours); \
    }
FORMATS(ROUND)

// Stores sixteen weights as floats, times `scale`, plus the elements of a table. A function of its
// own (not inlined): it is the same for all formats.
static __device__ __noinline__ void put_sixteen(uint4 codes, float by, float least, float scale, const void *table, size_t beside, void *y,
    size_t at, uint dtype) {
    const uint q[4] = {codes.x, codes.y, codes.z, codes.w};
    alignas(16) float v[16];
#pragma unroll
    for (uint j = 0; j < 16; j++) {
        v[j] = fmaf(by, float(int8_t(byte_of(q[j / 4], j % 4))), least) * scale;
        if (table) v[j] += element(table, beside + j, dtype);
    }
    // Rows are whole blocks, so groups of sixteen are aligned to 16 bytes.
    if (dtype == 0) {
#pragma unroll
        for (uint j = 0; j < 16; j += 4) put<float, 4>(static_cast<float *>(y) + at + j, {v[j], v[j + 1], v[j + 2], v[j + 3]});
        return;
    }
#pragma unroll
    for (uint j = 0; j < 16; j += 8) {
        Run<half_t, 8> halves;
        Run<bhalf_t, 8> bhalves;
#pragma unroll
        for (uint e = 0; e < 8; e++) halves.of[e] = narrow<half_t>(v[j + e]), bhalves.of[e] = narrow<bhalf_t>(v[j + e]);
        if (dtype == 1) put<half_t, 8>(static_cast<half_t *>(y) + at + j, halves);
        else put<bhalf_t, 8>(static_cast<bhalf_t *>(y) + at + j, bhalves);
    }
}

// Embedding lookup: y[t] = scale · W[ids[t]] + table[places[t]], a thread per pair. Without ids,
// row after row from `first` on; an id beyond the last row reads the last row.
template <typename F>
__device__ void rows_of(const uint8_t *w, const uint16_t *grid, const uint *ids, const void *table, const uint *places, void *y,
    uint tokens, uint k, uint n, uint bytes, uint table_rows, uint table_step, uint dtype, float scale, uint first) {
    const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= size_t(tokens) * (k / 32)) return;
    const uint token = uint(i / (k / 32)), at = uint(i % (k / 32)), block = at / F::PAIRS, p = at % F::PAIRS;
    const uint row = ids ? min(ids[token], n - 1) : first + token;
    const Pair pair = F::pair(w + size_t(row) * bytes + size_t(block) * F::BYTES, grid, p);
    const size_t beside = table ? size_t(min(places[token], table_rows - 1)) * table_step : 0;
#pragma unroll
    for (uint h = 0; h < 2; h++) {
        const uint column = (block * (2 * F::PAIRS) + F::first(p) + h * F::APART) * 16;
        const size_t to = size_t(token) * k + column;
        put_sixteen(pair.q[h], pair.scale[h], pair.least[h], scale, table, beside + column, y, to, dtype);
    }
}
#define ROWS_OF(NAME, F) \
    extern "C" __global__ void quant_rows_##NAME(const uint8_t *w, const uint16_t *grid, const uint *ids, const void *table, \
        const uint *places, void *y, uint tokens, uint k, uint n, uint bytes, uint table_rows, uint table_step, uint dtype, \
        float scale, uint first) { \
        wait_for_earlier(); \
        rows_of<F>(w, grid, ids, table, places, y, tokens, k, n, bytes, table_rows, table_step, dtype, scale, first); \
    }
PLAIN_FORMATS(ROWS_OF)
OTHER_FORMATS(ROWS_OF)
