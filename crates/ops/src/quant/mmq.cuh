// Matrix products (GEMM; llama.cpp's name is MMQ), y = act(x · Wᵀ + b) + residual for many rows of
// x in 8 bits and W in a block format, with the int8 products of the tensor cores (mma): for 128 or
// 256 inputs at a time, a tile of W is unpacked to bytes in shared memory beside a tile of x.
// Products of 32 inputs (16, if a format has scales for so few) are integers; then they are
// multiplied by the scales of both, in f32.
#pragma once
#include "launch/cuda/mma.cuh"
#include "quant/formats.cuh"
#include "quant/activations_q8.cuh"

// Converts integers below 2²² to float: a sum that starts with these bits is, as a float, 1.5 · 2²³
// larger than its value.
constexpr int FLOAT_BITS = 0x4b400000;
__device__ __forceinline__ float to_float(int v) { return __int_as_float(v) - 12582912.0f; }

// 16 × 8 sums over 32 inputs, and over 16.
__device__ __forceinline__ void mma_32(int (&c)[4], const uint (&a)[4], uint b0, uint b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_16(int (&c)[4], uint a0, uint a1, uint b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(b));
}

// A tile of 16·MT rows and 8·NT·WN columns, by WN warps side by side; each of those is WK warps
// that share the inputs (split-K), UNITS times 32 per step.
template <typename F, int MT, int NT, int WN, int WK, int UNITS_> struct Tile {
    static constexpr uint UNITS = UNITS_, DEEP = 32 * UNITS;
    // Bytes from row to row: groups of sixteen bytes of eight adjacent rows are in different banks.
    static constexpr uint PITCH = DEEP + 16;
    static constexpr uint ROWS = 16 * MT, COLUMNS = 8 * NT * WN, THREADS = LANES * WN * WK;
    // Scales of a row per step.
    static constexpr uint PARTS = F::SCALE_PER_16 ? 2 * UNITS : UNITS;

    struct Step {
        alignas(16) uint8_t x[ROWS * PITCH];
        alignas(16) uint8_t w[COLUMNS * PITCH];
        float x_scale[UNITS][ROWS];
        alignas(8) float w_scale[PARTS][COLUMNS];
        float x_sum[F::HAS_MIN ? PARTS : 1][ROWS];
        alignas(8) float w_min[F::HAS_MIN ? PARTS : 1][COLUMNS];
    };
    union SharedStorage {
        Step step;
        alignas(16) float sums[WK][ROWS * COLUMNS];
    };

    // Loads x for step `step`. Rows beyond the last repeat it; inputs beyond the last are zero.
    static __device__ __forceinline__ void load_x(Step &to, const Rounded &x, uint first_row, uint step, const Sizes &s) {
        static_assert(ROWS * (DEEP / 16) % THREADS == 0 && COLUMNS * UNITS % THREADS == 0, "every thread fetches the same amount");
#pragma unroll
        for (uint i = threadIdx.x; i < ROWS * (DEEP / 16); i += THREADS) {
            const uint row = i / (DEEP / 16), column = i % (DEEP / 16), at = step * (DEEP / 16) + column;
            const uint4 v = x.sixteen_of(min(first_row + row, s.rows - 1), min(at, s.k / 16 - 1));
            *reinterpret_cast<uint4 *>(to.x + row * PITCH + column * 16) = at < s.k / 16 ? v : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (uint i = threadIdx.x; i < ROWS * UNITS; i += THREADS) {
            const uint row = i / UNITS, unit = i % UNITS, at = 2 * (step * UNITS + unit), of = min(first_row + row, s.rows - 1);
            const bool is_there = at < s.k / 16;
            to.x_scale[unit][row] = is_there ? x.scale_of(of, at) : 0.0f;
            if constexpr (F::HAS_MIN) {
                const float a = is_there ? x.sum_of(of, at) : 0.0f, b = is_there ? x.sum_of(of, at + 1) : 0.0f;
                if constexpr (F::SCALE_PER_16) to.x_sum[2 * unit][row] = a, to.x_sum[2 * unit + 1][row] = b;
                else to.x_sum[unit][row] = a + b;
            }
        }
    }

    static __device__ __forceinline__ void set_scale(Step &to, uint part, uint row, float scale, float minimum) {
        to.w_scale[part][row] = scale;
        if constexpr (F::HAS_MIN) to.w_min[part][row] = minimum;
    }

    // Loads and unpacks W for the step.
    static __device__ __forceinline__ void load_w(
        Step &to, const uint8_t *w, const uint16_t *grid, uint first_column, uint step, const Sizes &s) {
#pragma unroll
        for (uint i = threadIdx.x; i < COLUMNS * UNITS; i += THREADS) {
            const uint row = i / UNITS, at = step * UNITS + i % UNITS;
            // Inputs beyond the last repeat the last with a scale of zero: without a branch, all
            // loads of a thread are in flight at once.
            const bool is_there = at < s.k / 32;
            const uint from = is_there ? at : s.k / 32 - 1, block = from / F::PAIRS, p = from % F::PAIRS;
            const size_t begin = size_t(min(first_column + row, s.n - 1)) * s.bytes + size_t(block) * F::BYTES;
            Pair pair = F::pair(w + begin, grid, p);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                pair.scale[h] = is_there ? pair.scale[h] : 0.0f;
                pair.minimum[h] = is_there ? pair.minimum[h] : 0.0f;
            }
            const uint part = at / F::PAIRS * (2 * F::PAIRS) + F::first(at % F::PAIRS) - step * (2 * UNITS);
            *reinterpret_cast<uint4 *>(to.w + row * PITCH + part * 16) = pair.q[0];
            *reinterpret_cast<uint4 *>(to.w + row * PITCH + (part + F::APART) * 16) = pair.q[1];
            if constexpr (F::SCALE_PER_16) {
                set_scale(to, part, row, pair.scale[0], pair.minimum[0]);
                set_scale(to, part + F::APART, row, pair.scale[1], pair.minimum[1]);
            } else if (part % 2 == 0) { // the other groups of sixteen have the same
                set_scale(to, part / 2, row, pair.scale[0], pair.minimum[0]);
                if constexpr (F::APART > 1) set_scale(to, (part + F::APART) / 2, row, pair.scale[1], pair.minimum[1]);
            }
        }
    }

    // Adds integer sums times both scales, and minimums times the sums of x, for the rows g and g +
    // 8 and two columns.
    static __device__ __forceinline__ void add(
        float (&sum)[4], const int (&c)[4], const Step &from, uint unit, uint part, uint row, uint column) {
        const float x0 = from.x_scale[unit][row], x1 = from.x_scale[unit][row + 8];
        const float2 w = *reinterpret_cast<const float2 *>(&from.w_scale[part][column]);
        sum[0] = fmaf(x0 * w.x, to_float(c[0]), sum[0]);
        sum[1] = fmaf(x0 * w.y, to_float(c[1]), sum[1]);
        sum[2] = fmaf(x1 * w.x, to_float(c[2]), sum[2]);
        sum[3] = fmaf(x1 * w.y, to_float(c[3]), sum[3]);
        if constexpr (F::HAS_MIN) {
            const float s0 = from.x_sum[part][row], s1 = from.x_sum[part][row + 8];
            const float2 minimum = *reinterpret_cast<const float2 *>(&from.w_min[part][column]);
            sum[0] = fmaf(minimum.x, s0, sum[0]);
            sum[1] = fmaf(minimum.y, s0, sum[1]);
            sum[2] = fmaf(minimum.x, s1, sum[2]);
            sum[3] = fmaf(minimum.y, s1, sum[3]);
        }
    }

    static __device__ __forceinline__ void multiply(float (&sums)[MT][NT][4], const Step &from, uint unit, uint first_column) {
        const uint lane = threadIdx.x % LANES, g = lane / 4, two = lane % 4 * 2;
        uint b[NT / 2][4];
#pragma unroll
        for (int j = 0; j < NT / 2; j++) {
            // Columns 0 to 7, their first sixteen inputs and their second; then columns 8 to 15.
            const uint row = first_column + 16 * j + lane / 16 * 8 + lane % 8;
            ldmatrix_x4(b[j], from.w + row * PITCH + unit * 32 + lane / 8 % 2 * 16);
        }
#pragma unroll
        for (int i = 0; i < MT; i++) {
            uint a[4]; // rows 0 to 7 and 8 to 15 of the first sixteen inputs, then of the second
            ldmatrix_x4(a, from.x + (16 * i + lane % 16) * PITCH + unit * 32 + lane / 16 * 16);
#pragma unroll
            for (int j = 0; j < NT; j++) {
                const uint b0 = b[j / 2][j % 2 * 2], b1 = b[j / 2][j % 2 * 2 + 1];
                const uint row = 16 * i + g, column = first_column + 8 * j + two;
                if constexpr (F::SCALE_PER_16) {
                    int first[4] = {FLOAT_BITS, FLOAT_BITS, FLOAT_BITS, FLOAT_BITS}, second[4] = {FLOAT_BITS, FLOAT_BITS, FLOAT_BITS, FLOAT_BITS};
                    mma_16(first, a[0], a[1], b0);
                    mma_16(second, a[2], a[3], b1);
                    add(sums[i][j], first, from, unit, 2 * unit, row, column);
                    add(sums[i][j], second, from, unit, 2 * unit + 1, row, column);
                } else {
                    int c[4] = {FLOAT_BITS, FLOAT_BITS, FLOAT_BITS, FLOAT_BITS};
                    mma_32(c, a, b0, b1);
                    add(sums[i][j], c, from, unit, unit, row, column);
                }
            }
        }
    }

    static __device__ void run(const uint8_t *rounded, const uint8_t *w, const uint16_t *grid, const void *bias, const void *residual,
        void *y, const Sizes &s) {
        __shared__ SharedStorage shared;
        const Rounded x(rounded, s.rows, s.k);
        const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
        const uint first_row = blockIdx.x * ROWS, first_column = blockIdx.y * COLUMNS, own = warp / WK * (8 * NT);
        float sums[MT][NT][4] = {};
        for (uint step = 0; step * UNITS < s.k / 32; step++) {
            __syncthreads(); // the tiles before have been read
            load_w(shared.step, w, grid, first_column, step, s);
            load_x(shared.step, x, first_row, step, s);
            __syncthreads();
#pragma unroll
            for (uint unit = 0; unit < UNITS / WK; unit++) multiply(sums, shared.step, unit * WK + warp % WK, own);
        }
        __syncthreads(); // the sums reuse the memory of the tiles
#pragma unroll
        for (int i = 0; i < MT; i++) {
#pragma unroll
            for (int j = 0; j < NT; j++) {
                const uint at = (16 * i + lane / 4) * COLUMNS + own + 8 * j + lane % 4 * 2;
                float *to = shared.sums[warp % WK];
                *reinterpret_cast<float2 *>(to + at) = make_float2(sums[i][j][0], sums[i][j][1]);
                *reinterpret_cast<float2 *>(to + at + 8 * COLUMNS) = make_float2(sums[i][j][2], sums[i][j][3]);
            }
        }
        __syncthreads();
        for (uint i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
            const uint row = first_row + i / COLUMNS, column = first_column + i % COLUMNS;
            float sum = shared.sums[0][i];
#pragma unroll
            for (uint other = 1; other < WK; other++) sum += shared.sums[other][i];
            if (row < s.rows && column < s.n) finish(sum, row, column, bias, residual, y, s);
        }
    }
};

#define MMQ(NAME, F, TILE, MT, NT, WN, WK, UNITS, BLOCKS) \
    extern "C" __global__ void __launch_bounds__(32 * WN * WK, BLOCKS) quant_mmq_##TILE##_##NAME(const uint8_t *x, const uint8_t *w, \
        const uint16_t *grid, const void *bias, const void *residual, void *y, QUANT_SIZES) { \
        grid_dependency_sync(); \
        Tile<F, MT, NT, WN, WK, UNITS>::run(x, w, grid, bias, residual, y, QUANT_ARGS); \
    }
// TILE is rows × columns: small tiles, so that a product with few rows of x still fills the card,
// and larger ones for many rows.
#define MMQ_TILES(NAME, F) \
    MMQ(NAME, F, 32x16, 2, 2, 1, 4, 8, 6) \
    MMQ(NAME, F, 64x32, 4, 4, 1, 4, 4, 3) \
    MMQ(NAME, F, 64x128, 4, 2, 8, 1, 4, 2)
