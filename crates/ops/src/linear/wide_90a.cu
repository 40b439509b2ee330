// Matrix products (GEMM), y = x · Wᵀ + b or its GELU, for many rows on Hopper: tiles of 192 columns
// by warpgroup products (wgmma), sums in f32, one rounding.
//
// The kernel is persistent: a thread block stays on its multiprocessor and takes tile after tile.
// One thread has TMA fetch the operands into a ring of stages; consumer warpgroups take turns with
// whole tiles (ping-pong), so that one multiplies while the other runs its epilogue: at the short
// depths of encoders the epilogue, GELU above all, takes as long as the product. Stages are filled
// in the order of the tiles.
//
// The bandwidth of the L2 cache and of shared memory is the limit, so tiles are as wide as the
// registers for sums allow, and there are two ways to fetch less. If the whole depth of a tile's
// columns of W fits shared memory, a thread block keeps it there and computes only tiles of these
// columns (`RESIDENT`). Else two thread blocks, a cluster, compute tiles of the same columns at the
// same time, and each fetches half of W's part for both (multicast).
#include "linear/wide.cuh"

constexpr int PIECES_ACROSS = TILE_COLUMNS / PIECE_COLUMNS;

template <bool RESIDENT> struct Plan {
    static constexpr int CLUSTER = RESIDENT ? 1 : 2;
    static constexpr int HALVES = RESIDENT ? 1 : 2; // of a tile's rows
    static constexpr int CONSUMERS = RESIDENT ? 3 : 2; // warpgroups
    static constexpr int REGISTERS = RESIDENT ? 160 : 240; // per thread
    static constexpr int THREADS = (CONSUMERS + 1) * GROUP;
    static constexpr int STAGES = RESIDENT ? 6 : 5;
    static constexpr int X_BYTES = HALVES * HALF_BYTES, STAGE_BYTES = RESIDENT ? X_BYTES : X_BYTES + W_BYTES;
    static constexpr int STEPS = RESIDENT ? 6 : 0; // steps of the depth whose part of W is kept; as many as stages
    static constexpr int RING = STEPS * W_BYTES; // where the stages begin
    static constexpr int OUT = RING + STAGES * STAGE_BYTES;
    static constexpr int BIAS = OUT + CONSUMERS * 4 * 2 * PIECE_BYTES;
    static constexpr int BARRIERS = BIAS + CONSUMERS * 2 * TILE_COLUMNS * 4;
    static constexpr int BYTES = BARRIERS + (2 * STAGES + CONSUMERS + STEPS) * 8;
};
static_assert(Plan<true>::BYTES <= 232448 && Plan<false>::BYTES <= 232448, "a block has no more shared memory");

// Phase bits of the ring's stages. Every tile begins with the first stage.
template <uint STAGES> struct Phases {
    uint bits = 0;
    __device__ __forceinline__ uint next(uint stage) {
        const uint phase = bits >> stage & 1;
        bits ^= 1u << stage;
        return phase;
    }
    __device__ __forceinline__ void skip(uint tiles, uint steps) {
        const uint often = steps / STAGES % 2 ? (1u << STAGES) - 1 : 0;
        if (tiles % 2) bits ^= often ^ ((1u << steps % STAGES) - 1);
    }
};

// Epilogue after product and bias.
enum Epilogue { PLAIN, WITH_GELU };

template <typename T, Epilogue EPILOGUE, bool RESIDENT>
__device__ void product(const CUtensorMap *xs, const CUtensorMap *ws, const T *bias, T *y, Sizes s, uint from_end) {
    using Plan = Plan<RESIDENT>;
    constexpr uint CLUSTER = Plan::CLUSTER, STAGES = Plan::STAGES, CONSUMERS = Plan::CONSUMERS, HALVES = Plan::HALVES, ROWS = HALVES * HALF;
    extern __shared__ __align__(1024) unsigned char shared[];
    uint64_t *full = reinterpret_cast<uint64_t *>(shared + Plan::BARRIERS);
    uint64_t *empty = full + STAGES, *turns = empty + STAGES, *kept = turns + CONSUMERS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) mbarrier_init(full + i, 1), mbarrier_init(empty + i, CLUSTER * GROUP / LANES);
        for (int i = 0; i < CONSUMERS; i++) mbarrier_init(turns + i, GROUP / LANES);
        for (int i = 0; i < Plan::STEPS; i++) mbarrier_init(kept + i, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CLUSTER > 1) cluster_sync();
    else __syncthreads();
    grid_dependency_sync();
    trigger_dependent_launch();
    const uint rank = CLUSTER > 1 ? cluster_rank() : 0;
    // Tiles of a cluster's thread blocks are above each other. If W is kept, the number of thread
    // blocks is a multiple of the columns.
    const uint columns = s.n / TILE_COLUMNS, steps = (s.k + DEPTH - 1) / DEPTH;
    const uint down = (s.rows + CLUSTER * ROWS - 1) / (CLUSTER * ROWS), tiles = down * columns;
    auto first_row = [&](uint tile) {
        const uint i = tile / columns;
        return ((from_end ? down - 1 - i : i) * CLUSTER + rank) * ROWS;
    };
    const uint first_tile = blockIdx.x / CLUSTER, tile_step = gridDim.x / CLUSTER;
    const uint group = group_of_warp();

    if (group == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == CONSUMERS * GROUP) {
            Phases<STAGES> phases;
            for (uint tile = first_tile; tile < tiles; tile += tile_step) {
                const uint row = first_row(tile), column = tile % columns * TILE_COLUMNS;
                for (uint step = 0; step < steps; step++) {
                    const uint stage = step % STAGES;
                    uint64_t *barrier = full + stage;
                    unsigned char *x = shared + Plan::RING + stage * Plan::STAGE_BYTES;
                    if (RESIDENT && tile == first_tile) {
                        unsigned char *w = shared + step * W_BYTES;
                        mbarrier_expect_tx(kept + step, W_BYTES);
                        tma_load(w, ws, kept + step, step * DEPTH, column);
                        tma_load(w + W_BYTES / 2, ws, kept + step, step * DEPTH, column + W_HALF);
                    }
                    mbarrier_wait(empty + stage, phases.next(stage) ^ 1);
                    mbarrier_expect_tx(barrier, Plan::STAGE_BYTES);
#pragma unroll
                    for (uint half = 0; half < HALVES; half++) tma_load(x + half * HALF_BYTES, xs, barrier, step * DEPTH, row + half * HALF);
                    if (!RESIDENT) {
                        unsigned char *w = x + Plan::X_BYTES + rank * (W_BYTES / 2);
                        tma_load_multicast(w, ws, barrier, step * DEPTH, column + rank * W_HALF);
                    }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Plan::REGISTERS));
        const uint lane = threadIdx.x % LANES, warp = threadIdx.x % GROUP / LANES;
        EpilogueStaging<T> out(shared + Plan::OUT + (group * 4 + warp) * 2 * PIECE_BYTES, lane);
        auto release = [&](uint64_t *barrier) {
            if (CLUSTER == 1 && lane == 0) mbarrier_arrive(barrier);
            if (CLUSTER > 1 && lane < CLUSTER) mbarrier_arrive_at_rank(barrier, lane);
        };
        Phases<STAGES> phases;
        phases.skip(group, steps);
        for (uint number = group;; number += CONSUMERS, phases.skip(CONSUMERS - 1, steps)) {
            const uint tile = first_tile + number * tile_step;
            if (tile >= tiles) break;
            const uint row0 = first_row(tile) + warp * PIECE_ROWS, column0 = tile % columns * TILE_COLUMNS;
            // Bias for two columns, loaded while the product is computed.
            const uint at = column0 + threadIdx.x % GROUP * 2;
            Run<T, 2> two = {};
            if (bias && threadIdx.x % GROUP < TILE_COLUMNS / 2) two = load<T, 2>(bias + s.first + at);
            // A barrier distinguishes only the last use of its stage from the one before, so a
            // warpgroup must not run ahead by more.
            mbarrier_wait(turns + group, (number / CONSUMERS + (group == 0)) & 1);
            Sums sums[HALVES];
            // Unrolled over the stages, so that the compiler knows each stage's addresses:
            // computing them between two products, while other warps run their epilogues, would
            // stall the tensor cores.
            for (uint first = 0; first < steps; first += STAGES) {
#pragma unroll
                for (uint stage = 0; stage < STAGES; stage++) {
                    const uint step = first + stage;
                    if (!RESIDENT && step >= steps) break;
                    const unsigned char *x = shared + Plan::RING + stage * Plan::STAGE_BYTES;
                    const uint64_t w = smem_descriptor(RESIDENT ? shared + stage * W_BYTES : x + Plan::X_BYTES);
                    if (RESIDENT && number < CONSUMERS) mbarrier_wait(kept + stage, 0);
                    mbarrier_wait(full + stage, phases.next(stage));
                    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                    for (int d = 0; d < DEPTH; d += 16) {
#pragma unroll
                        for (uint half = 0; half < HALVES; half++) {
                            const bool more = (RESIDENT ? stage : step) + d > 0;
                            wgmma<T>(sums[half], smem_descriptor(x + half * HALF_BYTES) + d * 2 / 16, w + d * 2 / 16, more);
                        }
                    }
                    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                    // This warp has read the stage before when all but the last products are done.
                    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                    if (RESIDENT ? stage > 0 : step > 0) release(empty + (stage + STAGES - 1) % STAGES);
                }
                if (RESIDENT) break;
            }
            if (lane == 0) mbarrier_arrive(turns + (group + 1) % CONSUMERS);
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            release(empty + (steps - 1) % STAGES);

            // Double-buffered, so that a warp may still read the last tile's biases.
            float2 *biases = reinterpret_cast<float2 *>(shared + Plan::BIAS) + (group * 2 + number / CONSUMERS % 2) * (TILE_COLUMNS / 2);
            if (threadIdx.x % GROUP < TILE_COLUMNS / 2) biases[threadIdx.x % GROUP] = make_float2(wide(two.of[0]), wide(two.of[1]));
            asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP) : "memory");
#pragma unroll
            for (uint half = 0; half < HALVES; half++) {
                const uint row = row0 + half * HALF;
                if (row >= s.rows) continue;
                // Columns are whole tiles: see `wide` in cuda.rs.
                T *to = y + size_t(row + lane / 4) * s.width + s.first + column0 + lane % 4 * 8;
                const bool first = row + lane / 4 < s.rows, second = row + lane / 4 + 8 < s.rows;
#pragma unroll
                for (uint piece = 0; piece < PIECES_ACROSS; piece++) {
                    float v[16];
#pragma unroll
                    for (int i = 0; i < 16; i += 2) {
                        const float2 b = biases[piece * (PIECE_COLUMNS / 2) + i / 4 * 4 + lane % 4];
                        v[i] = sums[half][piece * 16 + i] + b.x, v[i + 1] = sums[half][piece * 16 + i + 1] + b.y;
                    }
#pragma unroll
                    for (int i = 0; i < 16; i++) {
                        if (EPILOGUE == WITH_GELU) v[i] = gelu_half(v[i]);
                    }
                    out.put(v, piece);
                    if (piece > 0) out.store(to + (piece - 1) * PIECE_COLUMNS, 8 * size_t(s.width), first, second);
                    out.take(piece);
                }
                out.store(to + (PIECES_ACROSS - 1) * PIECE_COLUMNS, 8 * size_t(s.width), first, second);
            }
        }
    }
    // A thread block must not exit before the other has sent or fetched everything for it.
    if (CLUSTER > 1) {
        __syncwarp();
        cluster_sync();
    }
}

// Parameters of every product, and whether rows are taken in reverse: see `alternate_row_order` in
// call.rs.
#define WIDE(NAME, T, KIND, EPILOGUE, WAY, RESIDENT, CLUSTER) \
    extern "C" __global__ void CLUSTER __launch_bounds__(Plan<RESIDENT>::THREADS, 1) linear_##WAY##_##KIND##_##NAME( \
        const __grid_constant__ CUtensorMap xs, const __grid_constant__ CUtensorMap ws, const T *bias, const T *, T *y, SIZES, \
        uint from_end) { \
        product<T, EPILOGUE, RESIDENT>(&xs, &ws, bias, y, ARGS, from_end); \
    }
#define WAYS(NAME, T) \
    WIDE(NAME, T, plain, PLAIN, resident, true, ) \
    WIDE(NAME, T, gelu, WITH_GELU, resident, true, ) \
    WIDE(NAME, T, plain, PLAIN, multicast, false, __cluster_dims__(2, 1, 1)) \
    WIDE(NAME, T, gelu, WITH_GELU, multicast, false, __cluster_dims__(2, 1, 1))
WAYS(f16, half_t)
WAYS(bf16, bhalf_t)
