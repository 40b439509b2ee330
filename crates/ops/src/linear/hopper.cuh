// Building blocks of matrix products (GEMM) on Hopper: mbarriers, TMA copies, matrix descriptors in
// shared memory.
#pragma once
#include <cuda.h>
#include "launch/cuda/mma.cuh"
#include "linear/sizes.cuh"

constexpr int DEPTH = 64; // of a stage: rows of 128 bytes, the size of the swizzle
constexpr int GROUP = 128; // threads of a warpgroup

__device__ __forceinline__ void mbarrier_init(uint64_t *barrier, uint count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count));
}
__device__ __forceinline__ void mbarrier_expect_tx(uint64_t *barrier, uint bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void mbarrier_wait(uint64_t *barrier, uint phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}\n" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}
// TMA copy of a box of a matrix into shared memory. EVICT_FIRST: it is not read again. Other copies
// have no L2 cache hint: the hint of normal priority moved a tenth to a third more bytes in all.
#define TMA_LOAD(INTO) "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes" INTO " [%0], [%1, {%3, %4}], [%2]"
template <bool EVICT_FIRST = false>
__device__ __forceinline__ void tma_load(void *to, const CUtensorMap *map, uint64_t *barrier, uint column, uint row) {
    const uint at = shared_address(to), barrier_at = shared_address(barrier);
    if constexpr (EVICT_FIRST) {
        asm volatile(TMA_LOAD(".L2::cache_hint") ", %5;" ::"r"(at), "l"(map), "r"(barrier_at), "r"(column), "r"(row), "l"(evict_first_policy()) : "memory");
    } else {
        asm volatile(TMA_LOAD("") ";" ::"r"(at), "l"(map), "r"(barrier_at), "r"(column), "r"(row) : "memory");
    }
}
// Matrix descriptor: rows of 128 bytes, swizzled, groups of eight rows 1024 bytes apart.
__device__ __forceinline__ uint64_t smem_descriptor(const void *p) {
    return uint64_t((shared_address(p) & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}

#define SUMS8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

// Index of this warp's warpgroup. All lanes read it from the first lane, so that the compiler knows
// that it is uniform: the operands of products are then computed once per warp, and in time.
__device__ __forceinline__ uint group_of_warp() { return __shfl_sync(ALL_LANES, threadIdx.x / GROUP, 0); }

// The next stage of the ring, and the number of rounds.
template <uint STAGES> struct PipelineState {
    uint stage = 0, phase = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    __device__ __forceinline__ void skip(uint n) {
        phase ^= (stage + n) / STAGES & 1;
        stage = (stage + n) % STAGES;
    }
};
