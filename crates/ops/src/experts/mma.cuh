// Fragments of halves for tensor cores.
#pragma once
#include "launch/cuda/prelude.cuh"

// Four matrices of 8 by 8 halves, each lane the address of a row of one.
__device__ __forceinline__ void load_matrices(uint (&to)[4], uint from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// sums += a · b of 16 by 16 and 16 by 8.
template <typename T> __device__ __forceinline__ void multiply(float (&sums)[4], const uint (&a)[4], uint b0, uint b1);
#define MULTIPLY(T, NAME) \
    template <> __device__ __forceinline__ void multiply<T>(float (&sums)[4], const uint (&a)[4], uint b0, uint b1) { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                     "{%0, %1, %2, %3};" \
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
    }
MULTIPLY(half_t, "f16")
MULTIPLY(bhalf_t, "bf16")
