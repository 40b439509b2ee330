// Tensor cores and asynchronous copies in PTX (PTX ISA, "Matrix fragments for mma.m16n8k16",
// "ldmatrix", "cp.async"). In a fragment, lane 4g + t has rows g and g + 8 of A and of the sums,
// column g of B, and pairs of adjacent elements from 2t on in the other direction.
#pragma once
#include "launch/cuda/prelude.cuh"

// The shared-memory address of a pointer, or of an address.
__device__ __forceinline__ uint shared_address(const void *p) { return uint(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ uint shared_address(uint at) { return at; }

// Loads four 8 × 8 matrices of 16-bit elements (ldmatrix); lane l passes the address of row l % 8
// of matrix l / 8.
template <typename At> __device__ __forceinline__ void ldmatrix_x4(uint m[4], At row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint m[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// c += a · b.
template <typename T> __device__ __forceinline__ void mma(float c[4], const uint a[4], uint b0, uint b1);
#define MMA(T, FORMAT) \
    template <> __device__ __forceinline__ void mma<T>(float c[4], const uint a[4], uint b0, uint b1) { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." FORMAT "." FORMAT ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
            "{%0, %1, %2, %3};" \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
    }
MMA(half_t, "f16")
MMA(bhalf_t, "bf16")

// Two adjacent elements in a register, the first in the lower half; back to floats; and the
// rounding errors.
template <typename T> __device__ __forceinline__ uint pair_of(float x, float y);
template <> __device__ __forceinline__ uint pair_of<half_t>(float x, float y) {
    const __half2 pair = __floats2half2_rn(x, y);
    return *reinterpret_cast<const uint *>(&pair);
}
template <> __device__ __forceinline__ uint pair_of<bhalf_t>(float x, float y) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint *>(&pair);
}
template <typename T> __device__ __forceinline__ float2 floats_of(uint pair);
template <> __device__ __forceinline__ float2 floats_of<half_t>(uint pair) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
}
template <> __device__ __forceinline__ float2 floats_of<bhalf_t>(uint pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
template <typename T> __device__ __forceinline__ uint rest_of(float x, float y, uint pair) {
    const float2 back = floats_of<T>(pair);
    return pair_of<T>(x - back.x, y - back.y);
}

// The L2 cache policy `evict_first`, for data that no kernel reads again.
__device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Copies 16 bytes into shared memory (cp.async), or zeros if nothing is there to read; `from` must
// be a valid address all the same. EVICT_FIRST: use the policy above.
template <bool EVICT_FIRST = false, typename At> __device__ __forceinline__ void cp_async_16(At to, const void *from, bool there) {
    const uint at = shared_address(to);
    const int bytes = there ? 16 : 0;
    if constexpr (EVICT_FIRST) {
        const uint64_t policy = evict_first_policy();
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(at), "l"(from), "r"(bytes), "l"(policy)
            : "memory");
    } else {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
    }
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of the latest copy groups are in flight.
template <int N> __device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
