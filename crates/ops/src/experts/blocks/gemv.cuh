// Matrix products (GEMV) of few pairs of token and expert with matrices in GGUF block formats, as
// `../gemv.cu` has them for floats: two launches that aim to read the selected experts' blocks at
// memory bandwidth. Activations keep their format and codes become floats, so that the second
// product sees nothing rounded to 8 bits; scales are applied once per 16 elements. Many pairs in
// f32 come here too.
#pragma once
#include "experts/gemv.cuh"
#include "launch/cuda/element.cuh"
#include "quant/formats.cuh"

// Activations in any format, f32 (0), f16 (1) or bf16 (2): tested at run time, so that one kernel
// serves all.
struct Activations {
    const void *of;
    uint dtype;
    // Whether rows begin at multiples of 16 bytes.
    bool in_runs;

    template <typename T> __device__ __forceinline__ void sixteen_as(float (&v)[16], size_t at) const {
        const T *x = static_cast<const T *>(of) + at;
        if (in_runs) return read<T, 16>(v, x);
#pragma unroll
        for (int j = 0; j < 16; j++) v[j] = wide(x[j]);
    }
    __device__ __forceinline__ void sixteen(float (&v)[16], size_t at) const {
        if (dtype == 0) sixteen_as<float>(v, at);
        else if (dtype == 1) sixteen_as<half_t>(v, at);
        else sixteen_as<bhalf_t>(v, at);
    }
};

// A code as a float: 2²³ + 128 assembled from its byte, minus both. A conversion would take four
// times as long.
__device__ __forceinline__ float code_of(uint flipped, uint i) {
    return __uint_as_float(__byte_perm(flipped, 0x4b000000u, 0x7440u | i)) - 8388736.0f;
}
__device__ __forceinline__ float dot_codes(uint4 codes, const float (&x)[16]) {
    const uint words[4] = {codes.x ^ 0x80808080u, codes.y ^ 0x80808080u, codes.z ^ 0x80808080u, codes.w ^ 0x80808080u};
    float sum = 0.0f;
#pragma unroll
    for (uint j = 0; j < 16; j++) sum = fmaf(code_of(words[j / 4], j % 4), x[j], sum);
    return sum;
}

// sums += by · (pair i of each row) · x, where x begins at `from`.
template <typename F>
__device__ __forceinline__ void add_pair(float (&sums)[R], const uint8_t *const (&rows)[R], const uint16_t *grid, uint i,
    const Activations &x, size_t from, float by) {
    const uint block = i / F::PAIRS, p = i % F::PAIRS, at = block * (2 * F::PAIRS) + F::first(p);
    Pair pairs[R];
#pragma unroll
    for (uint r = 0; r < R; r++) pairs[r] = F::pair(rows[r] + size_t(block) * F::BYTES, grid, p);
    float both[R] = {};
#pragma unroll
    for (uint h = 0; h < 2; h++) {
        float v[16], sum = 0.0f;
        x.sixteen(v, from + size_t(at + h * F::APART) * 16);
        if constexpr (F::HAS_MIN) {
#pragma unroll
            for (int j = 0; j < 16; j++) sum += v[j];
        }
#pragma unroll
        for (uint r = 0; r < R; r++) {
            both[r] = fmaf(pairs[r].scale[h], dot_codes(pairs[r].q[h], v), both[r]);
            if constexpr (F::HAS_MIN) both[r] = fmaf(pairs[r].minimum[h], sum, both[r]);
        }
    }
#pragma unroll
    for (uint r = 0; r < R; r++) sums[r] = fmaf(by, both[r], sums[r]);
}

struct Up {
    // Outputs, without those of a gate; bytes of a row of the matrix.
    uint n, k, step, bytes, experts, top, is_renormalised, activation, is_gated;
};

// act(x · Upᵀ) of one pair, R columns per warp; act(x · Gateᵀ) · (x · Upᵀ) of half as many.
template <typename F>
__device__ void up(const Activations &x, const float *logits, const uint16_t *grid, uint *selected, float *probabilities, void *y, const Up &p,
    const Weights<uint8_t, MAX_EXPERTS> &weights) {
    __shared__ uint expert;
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, pair = blockIdx.x, token = pair / p.top;
    if (warp == 0) select_expert(expert, logits, selected, probabilities, p);
    __syncthreads();
    const uint width = p.is_gated ? R / 2 : R, column = (blockIdx.y * (blockDim.x / LANES) + warp) * width;
    if (column >= p.n) return;
    const uint8_t *rows[R];
#pragma unroll
    for (uint r = 0; r < R; r++) {
        const uint at = row_of(r, column, p);
        rows[r] = weights.of[expert] + size_t(at) * p.bytes;
    }
    float sums[R] = {};
    for (uint i = lane; i < p.k / 32; i += LANES) add_pair<F>(sums, rows, grid, i, x, size_t(token) * p.step, 1.0f);
#pragma unroll
    for (uint r = 0; r < R; r++) sums[r] = warp_sum(sums[r]);
#pragma unroll
    for (uint r = 0; r < R; r++) {
        const uint to = column + (p.is_gated ? r / 2 : r);
        if (lane != r || to >= p.n || (p.is_gated && r % 2 == 1)) continue;
        const float v = activate(sums[r], p.activation);
        set_element(y, size_t(pair) * p.n + to, p.is_gated ? v * sums[r ^ 1] : v, x.dtype);
    }
}

struct Down {
    uint n, k, bytes, top, residual_step;
};

// The sum over a token's pairs of p · x · Downᵀ, R columns per block: the rows of all its experts
// count as one long row.
template <typename F>
__device__ void down(const Activations &x, const uint *selected, const float *probabilities, const uint16_t *grid, const void *bias,
    const void *residual, void *y, const Down &p, const Weights<uint8_t, MAX_EXPERTS> &weights) {
    __shared__ const uint8_t *matrix[MAX_TOP_K];
    __shared__ float probability[MAX_TOP_K];
    __shared__ float part[R][LANES];
    const uint token = blockIdx.x, column = blockIdx.y * R, lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    if (threadIdx.x < p.top) {
        matrix[threadIdx.x] = weights.of[selected[size_t(token) * p.top + threadIdx.x]];
        probability[threadIdx.x] = probabilities[size_t(token) * p.top + threadIdx.x];
    }
    __syncthreads();
    const uint pairs = p.k / 32;
    float sums[R] = {};
    for (uint i = threadIdx.x; i < p.top * pairs; i += blockDim.x) {
        const uint slot = i / pairs;
        const uint8_t *rows[R];
#pragma unroll
        for (uint r = 0; r < R; r++) rows[r] = matrix[slot] + size_t(min(column + r, p.n - 1)) * p.bytes;
        add_pair<F>(sums, rows, grid, i % pairs, x, (size_t(token) * p.top + slot) * p.k, probability[slot]);
    }
    end_down(sums, part, lane, warp, column, p.n, [&](uint to, float v) {
        if (bias) v += element(bias, to, x.dtype);
        if (residual) v += element(residual, size_t(token) * p.residual_step + to, x.dtype);
        set_element(y, size_t(token) * p.n + to, v, x.dtype);
    });
}

#define GEMV(NAME, F) \
    extern "C" __global__ void __launch_bounds__(256, 3) experts_up_##NAME(const void *x, const float *logits, uint *selected, \
        float *probabilities, void *y, uint n, uint k, uint step, uint experts, uint top, uint is_renormalised, uint activation, uint is_gated, \
        IN_BLOCKS) { \
        grid_dependency_sync(); \
        up<F>({x, dtype, in_runs != 0}, logits, grid, selected, probabilities, y, \
            Up{n, k, step, bytes, experts, top, is_renormalised, activation, is_gated}, weights); \
    } \
    extern "C" __global__ void __launch_bounds__(128, 6) experts_down_##NAME(const void *x, const uint *selected, const float *probabilities, \
        const void *bias, const void *residual, void *y, uint n, uint k, uint top, uint residual_step, IN_BLOCKS) { \
        grid_dependency_sync(); \
        down<F>({x, dtype, in_runs != 0}, selected, probabilities, grid, bias, residual, y, Down{n, k, bytes, top, residual_step}, weights); \
    }
