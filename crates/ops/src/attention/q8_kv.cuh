// Keys and values of a Q8 KV cache (blocks of 32 codes) as tensor core operands.
//
// A code times its scale has up to 18 bits, and tensor cores multiply it in 16-bit formats. So it
// comes in two parts, the second being the rounding error of the first. In f16 the two are exact;
// in bf16 they have 16 of the 18 bits, for a result that is rounded to eight.
#pragma once
#include "attention/task.cuh"
#include "launch/cuda/mma.cuh"

// Code `i` of four, built as the low bits of a float above 2^23, because integer conversions are
// slow.
__device__ __forceinline__ float code_of(uint four, uint i) {
    return __uint_as_float(__byte_perm(four ^ 0x80808080u, 0x4b000000u, 0x7540u + i)) - 8388736.0f;
}

// Clamps the first part: if the product exceeds f16, the second part has the rest.
template <typename T> __device__ __forceinline__ float within(float x) { return x; }
template <> __device__ __forceinline__ float within<half_t>(float x) { return fminf(fmaxf(x, -65504.0f), 65504.0f); }

// Stages rows `rows` of k or v, 16 codes per thread; second parts begin `rest` elements after the
// first. All loads come before the first store. Vectors are whole Q8 blocks.
template <typename T, uint D, uint N, uint THREADS>
__device__ __forceinline__ void stage_q8(T *to, uint rest, const T *from, const half_t *scales, Steps steps, uint head,
    const uint *rows, uint size) {
    constexpr uint TURNS = N * (D / 16) / THREADS;
    static_assert(N * (D / 16) % THREADS == 0, "every thread copies the same number of codes");
    const int8_t *codes = reinterpret_cast<const int8_t *>(from);
    uint4 read[TURNS];
    float scale[TURNS];
#pragma unroll
    for (uint turn = 0; turn < TURNS; turn++) {
        const uint i = turn * THREADS + threadIdx.x, c = i % (D / 16) * 16, row = rows[i / (D / 16)];
        const bool there = row != 0xffffffffu && c < size;
        const size_t at = there ? steps.at(row, head) + c : 0;
        read[turn] = there ? *reinterpret_cast<const uint4 *>(codes + at) : make_uint4(0, 0, 0, 0);
        scale[turn] = there ? wide(scales[at / 32]) : 0.0f;
    }
#pragma unroll
    for (uint turn = 0; turn < TURNS; turn++) {
        const uint i = turn * THREADS + threadIdx.x;
        T *at = to + i / (D / 16) * (D + 8) + i % (D / 16) * 16;
        const uint fours[4] = {read[turn].x, read[turn].y, read[turn].z, read[turn].w};
        uint first[8], second[8];
#pragma unroll
        for (uint j = 0; j < 8; j++) {
            const float x = code_of(fours[j / 2], j % 2 * 2) * scale[turn], y = code_of(fours[j / 2], j % 2 * 2 + 1) * scale[turn];
            first[j] = pair_of<T>(within<T>(x), within<T>(y));
            second[j] = rest_of<T>(x, y, first[j]);
        }
#pragma unroll
        for (uint j = 0; j < 8; j += 4) {
            *reinterpret_cast<uint4 *>(at + 2 * j) = make_uint4(first[j], first[j + 1], first[j + 2], first[j + 3]);
            *reinterpret_cast<uint4 *>(at + rest + 2 * j) = make_uint4(second[j], second[j + 1], second[j + 2], second[j + 3]);
        }
    }
}
