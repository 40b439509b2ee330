// y = x · Wᵀ + b, or its GELU, for many rows on Hopper: tiles of 192 columns by warpgroup products (wgmma), sums in f32, one rounding.
//
// A block stays on its processor and takes tile after tile. One thread has the copy engine fetch what the products read, into a ring of
// stages; warpgroups take turns with whole tiles, so that one multiplies while the other ends its tile: with the short depths of
// encoders the end, GELU above all, takes as long as the product. Stages are filled in the order of the tiles.
//
// What the second-level cache and shared memory can deliver is the limit, so tiles are as wide as the sums have registers, and there are
// two ways to fetch less. Where all depth of a tile's columns of W has room, a block keeps them and has tiles of these columns alone
// (`KEPT`). Else two blocks, a cluster, make tiles of the same columns at the same time, and each fetches half of W's part for both.
#include "linear/hopper.cuh"

constexpr int TILE_COLUMNS = 192;
constexpr int HALF = 64; // rows of x that a warpgroup multiplies at once, and that are fetched at once
constexpr int HALF_BYTES = HALF * DEPTH * 2, W_BYTES = TILE_COLUMNS * DEPTH * 2;
constexpr int W_HALF = TILE_COLUMNS / 2; // rows of W that are fetched at once
// The end of a tile goes in pieces of 16 rows and 32 columns for each warp, through shared memory.
constexpr int PIECE_ROWS = 16, PIECE_COLUMNS = 32, PIECE_BYTES = PIECE_ROWS * PIECE_COLUMNS * 2;
constexpr int PIECES_ACROSS = TILE_COLUMNS / PIECE_COLUMNS;

template <bool KEPT> struct Plan {
    static constexpr int CLUSTER = KEPT ? 1 : 2;
    static constexpr int HALVES = KEPT ? 1 : 2; // of a tile's rows
    static constexpr int CONSUMERS = KEPT ? 3 : 2; // warpgroups
    static constexpr int REGISTERS = KEPT ? 160 : 240; // of their threads
    static constexpr int THREADS = (CONSUMERS + 1) * GROUP;
    static constexpr int STAGES = KEPT ? 6 : 5;
    static constexpr int X_BYTES = HALVES * HALF_BYTES, STAGE_BYTES = KEPT ? X_BYTES : X_BYTES + W_BYTES;
    static constexpr int STEPS = KEPT ? 6 : 0; // of the depth, whose part of W is kept
    static constexpr int RING = STEPS * W_BYTES; // where the stages begin
    static constexpr int OUT = RING + STAGES * STAGE_BYTES;
    static constexpr int BIAS = OUT + CONSUMERS * 4 * 2 * PIECE_BYTES;
    static constexpr int BARRIERS = BIAS + CONSUMERS * 2 * TILE_COLUMNS * 4;
    static constexpr int BYTES = BARRIERS + (2 * STAGES + CONSUMERS + STEPS) * 8;
};
static_assert(Plan<true>::BYTES <= 232448 && Plan<false>::BYTES <= 232448, "what a block may have");

// At the same barrier of the cluster's block of this rank. To order ordinary writes for it too would take a fence of the whole GPU, as
// long as a step; here nothing was written, only read by products that are done.
__device__ __forceinline__ void barrier_arrive_at(uint64_t *barrier, uint rank) {
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

// The same into both blocks of a cluster, to the same place, which the same barrier of each is told.
__device__ __forceinline__ void fetch_for_both(void *to, const CUtensorMap *map, uint64_t *barrier, uint column, uint row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(uint16_t(3))
        : "memory");
}
// d += 64 rows of x · 192 rows of Wᵀ over a depth of 16; `more`: instead of d = ….
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
using Sums = float[TILE_COLUMNS / 2]; // of 64 rows: a lane has two neighbours of rows lane / 4 and lane / 4 + 8 in every eight columns
template <typename T> __device__ __forceinline__ void multiply(Sums &d, uint64_t a, uint64_t b, int more);
template <> __device__ __forceinline__ void multiply<half_t>(Sums &d, uint64_t a, uint64_t b, int more) { WGMMA("f16"); }
template <> __device__ __forceinline__ void multiply<bhalf_t>(Sums &d, uint64_t a, uint64_t b, int more) { WGMMA("bf16"); }

// Four matrices of 8 × 8, of which each lane names a row of 16 bytes.
__device__ __forceinline__ void put_matrices(uint to, const uint (&of)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(of[0]), "r"(of[1]), "r"(of[2]), "r"(of[3])
        : "memory");
}

// What follows a product and a bias.
enum Then { PLAIN, WITH_GELU };

template <typename T, Then THEN, bool KEPT>
__device__ void product(const CUtensorMap *xs, const CUtensorMap *ws, const T *bias, T *y, Sizes s) {
    using Plan = Plan<KEPT>;
    constexpr uint CLUSTER = Plan::CLUSTER, STAGES = Plan::STAGES, CONSUMERS = Plan::CONSUMERS, HALVES = Plan::HALVES, ROWS = HALVES * HALF;
    extern __shared__ __align__(1024) unsigned char shared[];
    uint64_t *full = reinterpret_cast<uint64_t *>(shared + Plan::BARRIERS);
    uint64_t *empty = full + STAGES, *turns = empty + STAGES, *kept = turns + CONSUMERS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_make(full + i, 1), barrier_make(empty + i, CLUSTER * GROUP / LANES);
        for (int i = 0; i < CONSUMERS; i++) barrier_make(turns + i, GROUP / LANES);
        for (int i = 0; i < Plan::STEPS; i++) barrier_make(kept + i, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CLUSTER > 1) cluster_sync();
    else __syncthreads();
    wait_for_earlier();
    const uint rank = CLUSTER > 1 ? cluster_rank() : 0;
    // Tiles of a cluster's blocks are above each other. Where W is kept the number of blocks is a multiple of the columns.
    const uint columns = (s.n + TILE_COLUMNS - 1) / TILE_COLUMNS, steps = (s.k + DEPTH - 1) / DEPTH;
    const uint tiles = (s.rows + CLUSTER * ROWS - 1) / (CLUSTER * ROWS) * columns;
    const uint first_tile = blockIdx.x / CLUSTER, tile_step = gridDim.x / CLUSTER;
    const uint group = threadIdx.x / GROUP;

    if (group == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == CONSUMERS * GROUP) {
            Turn<STAGES> turn;
            for (uint tile = first_tile; tile < tiles; tile += tile_step) {
                const uint row = (tile / columns * CLUSTER + rank) * ROWS, column = tile % columns * TILE_COLUMNS;
                for (uint step = 0; step < steps; step++, turn.next()) {
                    uint64_t *barrier = full + turn.stage;
                    unsigned char *x = shared + Plan::RING + turn.stage * Plan::STAGE_BYTES;
                    if (KEPT && tile == first_tile) {
                        unsigned char *w = shared + step * W_BYTES;
                        barrier_expect(kept + step, W_BYTES);
                        fetch(w, ws, kept + step, step * DEPTH, column);
                        fetch(w + W_BYTES / 2, ws, kept + step, step * DEPTH, column + W_HALF);
                    }
                    barrier_wait(empty + turn.stage, turn.phase ^ 1);
                    barrier_expect(barrier, Plan::STAGE_BYTES);
#pragma unroll
                    for (uint half = 0; half < HALVES; half++) fetch(x + half * HALF_BYTES, xs, barrier, step * DEPTH, row + half * HALF);
                    if (!KEPT) {
                        unsigned char *w = x + Plan::X_BYTES + rank * (W_BYTES / 2);
                        fetch_for_both(w, ws, barrier, step * DEPTH, column + rank * W_HALF);
                    }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Plan::REGISTERS));
        const uint lane = threadIdx.x % LANES, warp = threadIdx.x % GROUP / LANES;
        unsigned char *out = shared + Plan::OUT + (group * 4 + warp) * 2 * PIECE_BYTES;
        // Rows of a piece are 64 bytes, swizzled. This lane's row of a matrix, where the second two of four matrices are 16 bytes on and the
        // next four 32; and the 16 bytes that it stores, with those of eight rows on.
        const uint in_piece = lane % 16 * 64 + ((lane / 16 ^ lane % 8 / 2) * 16);
        const uint of_piece = lane / 4 * 64 + ((lane % 4 ^ lane / 4 / 2 % 4) * 16);
        auto release = [&](uint64_t *barrier) {
            if (CLUSTER == 1 && lane == 0) barrier_arrive(barrier);
            if (CLUSTER > 1 && lane < CLUSTER) barrier_arrive_at(barrier, lane);
        };
        Turn<STAGES> turn;
        uint number = 0;
        for (uint tile = first_tile; tile < tiles; tile += tile_step, number++) {
            if (number % CONSUMERS != group) {
                turn.skip(steps);
                continue;
            }
            const uint row0 = (tile / columns * CLUSTER + rank) * ROWS + warp * PIECE_ROWS, column0 = tile % columns * TILE_COLUMNS;
            // Bias for two columns, on its way while the product is made.
            const uint at = column0 + threadIdx.x % GROUP * 2;
            Run<T, 2> two = {};
            if (bias && threadIdx.x % GROUP < TILE_COLUMNS / 2 && at < s.n) two = load<T, 2>(bias + s.first + at);
            // A barrier tells only the last use of its stage from the one before: a group that looked ahead would mistake them.
            barrier_wait(turns + group, (number / CONSUMERS + (group == 0)) & 1);
            Sums sums[HALVES];
            uint before = 0;
            for (uint step = 0; step < steps; step++, turn.next()) {
                const unsigned char *x = shared + Plan::RING + turn.stage * Plan::STAGE_BYTES;
                const uint64_t w = matrix(KEPT ? shared + step * W_BYTES : x + Plan::X_BYTES);
                if (KEPT) barrier_wait(kept + step, 0);
                barrier_wait(full + turn.stage, turn.phase);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int d = 0; d < DEPTH; d += 16) {
#pragma unroll
                    for (uint half = 0; half < HALVES; half++) {
                        multiply<T>(sums[half], matrix(x + half * HALF_BYTES) + d * 2 / 16, w + d * 2 / 16, step + d > 0);
                    }
                }
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                // The stage before has been read by this warp when all but the last products are done.
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (step > 0) release(empty + before);
                before = turn.stage;
            }
            if (lane == 0) barrier_arrive(turns + (group + 1) % CONSUMERS);
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            release(empty + before);

            // There are two such rooms, so that a warp may still read the last tile's.
            float2 *biases = reinterpret_cast<float2 *>(shared + Plan::BIAS) + (group * 2 + number / CONSUMERS % 2) * (TILE_COLUMNS / 2);
            if (threadIdx.x % GROUP < TILE_COLUMNS / 2) biases[threadIdx.x % GROUP] = make_float2(wide(two.of[0]), wide(two.of[1]));
            asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP) : "memory");
#pragma unroll
            for (uint half = 0; half < HALVES; half++) {
                const uint row = row0 + half * HALF;
                if (row >= s.rows) continue;
                T *to = y + size_t(row + lane / 4) * s.width + s.first + column0 + lane % 4 * 8;
#pragma unroll
                for (uint piece = 0; piece < PIECES_ACROSS; piece++) {
                    const uint column = column0 + piece * PIECE_COLUMNS;
                    if (column >= s.n) break;
                    float v[16];
#pragma unroll
                    for (int i = 0; i < 16; i += 2) {
                        const float2 b = biases[piece * (PIECE_COLUMNS / 2) + i / 4 * 4 + lane % 4];
                        v[i] = sums[half][piece * 16 + i] + b.x, v[i + 1] = sums[half][piece * 16 + i + 1] + b.y;
                    }
#pragma unroll
                    for (int i = 0; i < 16; i++) {
                        if (THEN == WITH_GELU) v[i] = gelu_half(v[i]);
                    }
                    // There are two rooms for pieces, too.
                    unsigned char *room = out + piece % 2 * PIECE_BYTES;
#pragma unroll
                    for (int i = 0; i < 16; i += 8) {
                        const uint four[4] = {pair_of<T>(v[i], v[i + 1]), pair_of<T>(v[i + 2], v[i + 3]),
                            pair_of<T>(v[i + 4], v[i + 5]), pair_of<T>(v[i + 6], v[i + 7])};
                        put_matrices(shared_address(room) + (in_piece ^ i * 4), four);
                    }
                    __syncwarp();
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const uint4 run = *reinterpret_cast<const uint4 *>(room + of_piece + i * (8 * 64));
                        const bool there = row + lane / 4 + i * 8 < s.rows && column + lane % 4 * 8 < s.n;
                        if (there) *reinterpret_cast<uint4 *>(to + i * 8 * size_t(s.width) + piece * PIECE_COLUMNS) = run;
                    }
                }
            }
        }
    }
    // What a block has told or fetched for the other has to find it there.
    if (CLUSTER > 1) {
        __syncwarp();
        cluster_sync();
    }
}

// Parameters are those of every product.
#define WIDE(NAME, T, KIND, THEN, WAY, KEPT, CLUSTER) \
    extern "C" __global__ void CLUSTER __launch_bounds__(Plan<KEPT>::THREADS, 1) linear_##WAY##_##KIND##_##NAME( \
        const __grid_constant__ CUtensorMap xs, const __grid_constant__ CUtensorMap ws, const T *bias, const T *, T *y, SIZES) { \
        product<T, THEN, KEPT>(&xs, &ws, bias, y, GIVEN); \
    }
#define WAYS(NAME, T) \
    WIDE(NAME, T, plain, PLAIN, kept, true, ) \
    WIDE(NAME, T, gelu, WITH_GELU, kept, true, ) \
    WIDE(NAME, T, plain, PLAIN, shared, false, __cluster_dims__(2, 1, 1))
WAYS(f16, half_t)
WAYS(bf16, bhalf_t)
