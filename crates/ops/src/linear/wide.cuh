// Shared by matrix products (GEMM) in tiles of 192 columns on Hopper: clusters of two thread
// blocks, the product itself, and the staging of results.
#pragma once
#include "linear/hopper.cuh"

constexpr int TILE_COLUMNS = 192;
constexpr int HALF = 64; // rows of x that a warpgroup multiplies at once, and that are fetched at once
constexpr int HALF_BYTES = HALF * DEPTH * 2, W_BYTES = TILE_COLUMNS * DEPTH * 2;
constexpr int W_HALF = TILE_COLUMNS / 2; // rows of W that are fetched at once
// The epilogue stages pieces of 16 rows and 32 columns for each warp in shared memory.
constexpr int PIECE_ROWS = 16, PIECE_COLUMNS = 32, PIECE_BYTES = PIECE_ROWS * PIECE_COLUMNS * 2;

// Arrives at the same barrier of the cluster's thread block of this rank. Releasing ordinary writes
// as well would take a fence of the whole GPU, as long as a step; here nothing was written, only
// read, by products that are done and loads that have completed.
__device__ __forceinline__ void mbarrier_arrive_at_rank(uint64_t *barrier, uint rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}\n" ::"r"(shared_address(barrier)), "r"(rank) : "memory");
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint cluster_rank() {
    uint rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Multicast: the same into both thread blocks of a cluster, to the same address, signalling the
// same barrier of each.
template <bool EVICT_FIRST = false>
__device__ __forceinline__ void tma_load_multicast(void *to, const CUtensorMap *map, uint64_t *barrier, uint column, uint row) {
    const uint at = shared_address(to), barrier_at = shared_address(barrier);
    const uint16_t both = 3;
    if constexpr (EVICT_FIRST) {
        asm volatile(TMA_LOAD(".multicast::cluster.L2::cache_hint") ", %5, %6;" ::"r"(at), "l"(map), "r"(barrier_at), "r"(column), "r"(row), "h"(both),
            "l"(evict_first_policy())
            : "memory");
    } else {
        asm volatile(TMA_LOAD(".multicast::cluster") ", %5;" ::"r"(at), "l"(map), "r"(barrier_at), "r"(column), "r"(row), "h"(both) : "memory");
    }
}
// d += 64 rows of x · 192 rows of Wᵀ over a depth of 16; without `more`, d is overwritten.
#define WGMMA(FORMAT) \
    asm volatile( \
        "{\n" \
        ".reg .pred p;\n" \
        "setp.ne.b32 p, %98, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n192k16.f32." FORMAT "." FORMAT " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, " \
        "%96, %97, p, 1, 1, 0, 0;\n" \
        "}\n" \
        : SUMS8(d, 0), SUMS8(d, 8), SUMS8(d, 16), SUMS8(d, 24), SUMS8(d, 32), SUMS8(d, 40), SUMS8(d, 48), SUMS8(d, 56), SUMS8(d, 64), \
          SUMS8(d, 72), SUMS8(d, 80), SUMS8(d, 88) \
        : "l"(a), "l"(b), "r"(more))
using Sums = float[TILE_COLUMNS / 2]; // of 64 rows: a lane has two adjacent elements of rows lane / 4 and lane / 4 + 8 in every eight columns
template <typename T> __device__ __forceinline__ void wgmma(Sums &d, uint64_t a, uint64_t b, int more);
template <> __device__ __forceinline__ void wgmma<half_t>(Sums &d, uint64_t a, uint64_t b, int more) { WGMMA("f16"); }
template <> __device__ __forceinline__ void wgmma<bhalf_t>(Sums &d, uint64_t a, uint64_t b, int more) { WGMMA("bf16"); }

// stmatrix: four matrices of 8 × 8; each lane addresses a row of 16 bytes.
__device__ __forceinline__ void stmatrix_x4(uint to, const uint (&of)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(of[0]), "r"(of[1]), "r"(of[2]), "r"(of[3])
        : "memory");
}

// Staging of a warp's results: from the layout of the sums into a piece, whose rows are 64 bytes,
// swizzled, and from there into rows of y. A lane stores what it takes from a piece after the next
// piece, so that no lane waits for it; pieces are double-buffered, so that one may still be read.
template <typename T> struct EpilogueStaging {
    unsigned char *buffers;
    uint in_piece; // offset of this lane's row in the first two of four matrices; in the last two it is 16 bytes further, in the next four 32
    uint of_piece; // offset of the first 16 bytes that this lane stores; the second are eight rows further
    uint4 taken[2];

    __device__ __forceinline__ EpilogueStaging(unsigned char *buffers, uint lane)
        : buffers(buffers), in_piece(lane % 16 * 64 + ((lane / 16 ^ lane % 8 / 2) * 16)),
          of_piece(lane / 4 * 64 + ((lane % 4 ^ lane / 4 / 2 % 4) * 16)) {}

    __device__ __forceinline__ void put(const float (&v)[16], uint piece) {
        unsigned char *buffer = buffers + piece % 2 * PIECE_BYTES;
#pragma unroll
        for (int i = 0; i < 16; i += 8) {
            const uint four[4] = {pair_of<T>(v[i], v[i + 1]), pair_of<T>(v[i + 2], v[i + 3]), pair_of<T>(v[i + 4], v[i + 5]),
                pair_of<T>(v[i + 6], v[i + 7])};
            stmatrix_x4(shared_address(buffer) + (in_piece ^ i * 4), four);
        }
        __syncwarp();
    }
    __device__ __forceinline__ void take(uint piece) {
        const unsigned char *from = buffers + piece % 2 * PIECE_BYTES + of_piece;
        taken[0] = *reinterpret_cast<const uint4 *>(from), taken[1] = *reinterpret_cast<const uint4 *>(from + 8 * 64);
    }
    // Stores to `to` if `first` is set, and `step` elements further, eight rows on, if `second` is
    // set.
    __device__ __forceinline__ void store(T *to, size_t step, bool first, bool second) const {
        if (first) *reinterpret_cast<uint4 *>(to) = taken[0];
        if (second) *reinterpret_cast<uint4 *>(to + step) = taken[1];
    }
};
