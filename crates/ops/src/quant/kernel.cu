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
        grid_dependency_sync(); \
        round_rows<T>(x, to, rows, k, x_step, fours); \
    }
FORMATS(ROUND)

// Stores sixteen weights as floats, times `scale`, plus the elements of a table. A function of its
// own (not inlined): it is the same for all formats.
static __device__ __noinline__ void put_sixteen(uint4 codes, float by, float minimum, float scale, const void *table, size_t beside, void *y,
    size_t at, uint dtype) {
    const uint q[4] = {codes.x, codes.y, codes.z, codes.w};
    alignas(16) float v[16];
#pragma unroll
    for (uint j = 0; j < 16; j++) {
        v[j] = fmaf(by, float(int8_t(byte_of(q[j / 4], j % 4))), minimum) * scale;
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

// Embedding lookup: y[t] = scale · W[ids[t]] + table[places[t]], a thread per pair. An id beyond
// the last row reads the last row.
template <typename F>
__device__ void rows_of(const uint8_t *w, const uint16_t *grid, const uint *ids, const void *table, const uint *places, void *y,
    uint tokens, uint k, uint n, uint bytes, uint table_rows, uint table_step, uint dtype, float scale) {
    const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= size_t(tokens) * (k / 32)) return;
    const uint token = uint(i / (k / 32)), at = uint(i % (k / 32)), block = at / F::PAIRS, p = at % F::PAIRS;
    const uint row = min(ids[token], n - 1);
    const Pair pair = F::pair(w + size_t(row) * bytes + size_t(block) * F::BYTES, grid, p);
    const size_t beside = table ? size_t(min(places[token], table_rows - 1)) * table_step : 0;
#pragma unroll
    for (uint h = 0; h < 2; h++) {
        const uint column = (block * (2 * F::PAIRS) + F::first(p) + h * F::APART) * 16;
        const size_t to = size_t(token) * k + column;
        put_sixteen(pair.q[h], pair.scale[h], pair.minimum[h], scale, table, beside + column, y, to, dtype);
    }
}
#define ROWS_OF(NAME, F) \
    extern "C" __global__ void quant_rows_##NAME(const uint8_t *w, const uint16_t *grid, const uint *ids, const void *table, \
        const uint *places, void *y, uint tokens, uint k, uint n, uint bytes, uint table_rows, uint table_step, uint dtype, \
        float scale) { \
        grid_dependency_sync(); \
        rows_of<F>(w, grid, ids, table, places, y, tokens, k, n, bytes, table_rows, table_step, dtype, scale); \
    }
LEGACY_AND_K_QUANTS(ROWS_OF)
I_QUANTS_AND_OTHERS(ROWS_OF)

// Eight weights as floats: two words of four codes.
template <typename T> __device__ __forceinline__ Run<T, 8> eight_floats(uint a, uint b, float scale, float minimum) {
    Run<T, 8> run;
#pragma unroll
    for (uint j = 0; j < 8; j++) run.of[j] = narrow<T>(fmaf(scale, float(int8_t(byte_of(j < 4 ? a : b, j % 4))), minimum));
    return run;
}

// Threads of a block of `floats_of`, and runs of 16 bytes that a warp stores.
constexpr uint FLOATS_THREADS = 256, WARP_RUNS = 32 * 4;

// Dequantizes `pairs` pairs, from block `first` on, for a product in floats; y begins `skipped`
// pairs from its start. A thread per pair. The groups of a pair are apart, and stores to so many
// cache lines at once would take most of the time: so a warp brings its runs into order in shared
// memory.
template <typename F, typename T>
__device__ void floats_of(const uint8_t *w, const uint16_t *grid, T *y, uint pairs, uint first, uint skipped) {
    __shared__ Run<T, 8> all[FLOATS_THREADS / 32][WARP_RUNS];
    const uint i = blockIdx.x * FLOATS_THREADS + threadIdx.x, lane = threadIdx.x % 32, begin = i - lane;
    Run<T, 8> *runs = all[threadIdx.x / 32];
    // Exchanges runs within lines of eight, so that few lanes meet in a bank.
    const auto bank = [](uint run) { return run ^ (run / 8 % 8); };
    if (i < pairs) {
        const uint p = lane % F::PAIRS;
        const Pair pair = F::pair(w + size_t(first + i / F::PAIRS) * F::BYTES, grid, p);
#pragma unroll
        for (uint h = 0; h < 2; h++) {
            const uint4 q = pair.q[h];
            const uint run = (2 * (lane - p) + F::first(p) + h * F::APART) * 2;
            runs[bank(run)] = eight_floats<T>(q.x, q.y, pair.scale[h], pair.minimum[h]);
            runs[bank(run + 1)] = eight_floats<T>(q.z, q.w, pair.scale[h], pair.minimum[h]);
        }
    }
    __syncwarp();
    T *to = y + (size_t(skipped) + begin) * 32;
#pragma unroll
    for (uint run = lane; run < WARP_RUNS; run += 32)
        if (begin + run / 4 < pairs) put<T, 8>(to + run * 8, runs[bank(run)]);
}
#define FLOATS_OF(NAME, F) \
    extern "C" __global__ void quant_floats_##NAME##_f16(const uint8_t *w, const uint16_t *grid, half_t *y, uint pairs, uint first, uint skipped) { \
        grid_dependency_sync(); \
        floats_of<F, half_t>(w, grid, y, pairs, first, skipped); \
    } \
    extern "C" __global__ void quant_floats_##NAME##_bf16(const uint8_t *w, const uint16_t *grid, bhalf_t *y, uint pairs, uint first, uint skipped) { \
        grid_dependency_sync(); \
        floats_of<F, bhalf_t>(w, grid, y, pairs, first, skipped); \
    }
LEGACY_AND_K_QUANTS(FLOATS_OF)
I_QUANTS_AND_OTHERS(FLOATS_OF)
