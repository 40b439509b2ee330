// What a warp computes for sixteen rows and some keys, in registers: scores, their exponentials,
// and the sum of weighted values. Scores never leave registers: the layout of the first product's
// sums is that of the second product's left matrix.
//
// Rounding exponentials to 16 bits costs the result a second rounding: by emulation the worst
// elements are off by up to 1.9 units and the mean is 0.25, where rounding the result alone gives
// 0.8 and 0.14. So exponentials are multiplied with v in two parts (EXACT), the second being the
// rounding error of the first. In plain attention over heads of 32 and 64 that would be half of all
// instructions. So there, if keys are not split, exponentials are rounded to 16 bits, as other
// implementations always do, and rows are divided by the sums of the rounded exponentials, which
// the tensor cores compute too.
#pragma once
#include "attention/task.cuh"
#include "launch/cuda/mma.cuh"

// A lane's part of rows r and r + 8: the result before the division, the largest score, and this
// lane's sum of exponentials, or the whole sum where they are rounded.
template <uint D> struct Sums {
    float o[D / 8][4], top[2], sum[2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (uint i = 0; i < D / 8; i++) {
#pragma unroll
            for (uint e = 0; e < 4; e++) o[i][e] = 0.0f;
        }
        top[0] = top[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
    }
};

// Address at which a lane starts to read matrices of k, and of v, whose rows are `pitch` elements
// apart.
template <typename T> __device__ __forceinline__ const T *k_of_lane(const T *k, uint pitch) {
    const uint lane = threadIdx.x % LANES;
    return k + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8;
}
template <typename T> __device__ __forceinline__ const T *of_lane(const T *v, uint pitch) {
    const uint lane = threadIdx.x % LANES;
    return v + lane % 16 * pitch + lane / 16 * 8;
}

// x += q · kᵀ, by TILES tiles of eight keys. q is in `m`, or read again from `q_at` where registers
// do not suffice (HELD). With keys in two parts (TWO), the second part is `rest` elements after the
// first.
template <typename T, uint D, bool HELD, bool TWO, uint TILES>
__device__ __forceinline__ void add_scores(float (&x)[TILES][4], const uint (&m)[D / 16][4], const T *q_at, const T *k_at, uint rest) {
#pragma unroll
    for (uint i = 0; i < D / 16; i++) {
        uint other[4];
        if (!HELD) ldmatrix_x4(other, q_at + i * 16);
#pragma unroll
        for (uint n = 0; n < TILES; n += 2) {
            uint mk[4];
            ldmatrix_x4(mk, k_at + n * 8 * (D + 8) + i * 16);
            mma<T>(x[n], HELD ? m[i] : other, mk[0], mk[1]);
            mma<T>(x[n + 1], HELD ? m[i] : other, mk[2], mk[3]);
            if constexpr (TWO) {
                ldmatrix_x4(mk, k_at + rest + n * 8 * (D + 8) + i * 16);
                mma<T>(x[n], HELD ? m[i] : other, mk[0], mk[1]);
                mma<T>(x[n + 1], HELD ? m[i] : other, mk[2], mk[3]);
            }
        }
    }
}

// Adds the weighted values of the scores, which become exponents of 2 when multiplied by `unit`.
template <typename T, uint D, bool TWO, bool EXACT, uint TILES>
__device__ __forceinline__ void add_weighted(Sums<D> &own, float (&x)[TILES][4], const T *v_at, uint rest, float unit) {
    float less[2], from[2];
#pragma unroll
    for (uint h = 0; h < 2; h++) {
        float largest = own.top[h];
#pragma unroll
        for (uint n = 0; n < TILES; n++) largest = fmaxf(largest, fmaxf(x[n][2 * h], x[n][2 * h + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        from[h] = below(largest) * unit;
        // While no key was visible, the sums are empty: nothing to rescale.
        less[h] = own.top[h] == largest || own.top[h] == -INFINITY ? 1.0f : exp2_near(own.top[h] * unit - from[h]);
        own.top[h] = largest;
        own.sum[h] *= less[h];
    }
    if (__any_sync(ALL_LANES, less[0] != 1.0f || less[1] != 1.0f)) {
#pragma unroll
        for (uint i = 0; i < D / 8; i++) {
#pragma unroll
            for (uint e = 0; e < 4; e++) own.o[i][e] *= less[e / 2];
        }
    }
    float totals[4] = {own.sum[0], own.sum[0], own.sum[1], own.sum[1]};
    const uint ones = pair_of<T>(1.0f, 1.0f);
#pragma unroll
    for (uint n = 0; n < TILES; n += 2) {
        uint p[4], rests[4];
#pragma unroll
        for (uint h = 0; h < 4; h++) {
            // Rows g and g + 8 of the first eight keys, then of the next.
            float *of = x[n + h / 2] + h % 2 * 2;
#pragma unroll
            for (uint e = 0; e < 2; e++) {
                of[e] = exp2_near(fmaf(of[e], unit, -from[h % 2]));
                if (EXACT) own.sum[h % 2] += of[e];
            }
            p[h] = pair_of<T>(of[0], of[1]);
            if (EXACT) rests[h] = rest_of<T>(of[0], of[1], p[h]);
        }
        if (!EXACT) mma<T>(totals, p, ones, ones);
#pragma unroll
        for (uint i = 0; i < D / 8; i += 2) {
            uint mv[4];
            ldmatrix_x4_trans(mv, v_at + n * 8 * (D + 8) + i * 8);
            mma<T>(own.o[i], p, mv[0], mv[1]);
            mma<T>(own.o[i + 1], p, mv[2], mv[3]);
            if constexpr (EXACT) {
                mma<T>(own.o[i], rests, mv[0], mv[1]);
                mma<T>(own.o[i + 1], rests, mv[2], mv[3]);
            }
            if constexpr (TWO) {
                ldmatrix_x4_trans(mv, v_at + rest + n * 8 * (D + 8) + i * 8);
                mma<T>(own.o[i], p, mv[0], mv[1]);
                mma<T>(own.o[i + 1], p, mv[2], mv[3]);
            }
        }
    }
    if (!EXACT) own.sum[0] = totals[0], own.sum[1] = totals[2];
}
