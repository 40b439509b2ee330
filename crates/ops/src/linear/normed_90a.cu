// Matrix products (GEMM) with a layer norm, y = norm(x · Wᵀ + b + residual) · weight + bias, for
// many rows on Hopper: the norm is fused into the product's epilogue, so that its input is neither
// written nor read again. Sums in f32, one rounding.
//
// Two warpgroups compute a tile of 128 rows and 384 columns, with all sums of a row in four lanes.
// That is a whole row of 384. A row of 768 has two thread blocks, a cluster, which exchange mean
// and variance of their halves (Chan et al. 1979). Both kinds are clusters: the operand that both
// thread blocks read, W or x, is fetched half by each and multicast to both. One thread has TMA
// fetch into a ring of stages; after the product's stages come two with the residual. Both x and
// the residual are read here for the last time.
#include "linear/wide.cuh"

constexpr uint CLUSTER = 2, GROUPS = 2, WARPS = GROUPS * GROUP / LANES, THREADS = (GROUPS + 1) * GROUP;
constexpr uint ROWS = GROUPS * HALF, COLUMNS = 2 * TILE_COLUMNS;
constexpr uint STAGES = 3, X_BYTES = GROUPS * HALF_BYTES, STAGE_BYTES = X_BYTES + 2 * W_BYTES;
// The residual arrives 64 columns at a time: four such chunks in the first stage and two in the
// second.
constexpr uint CHUNK_BYTES = ROWS * DEPTH * 2, CHUNKS = COLUMNS / DEPTH, FIRST_CHUNKS = STAGE_BYTES / CHUNK_BYTES;
constexpr uint OUT = STAGES * STAGE_BYTES;
constexpr uint VECTORS = OUT + WARPS * 2 * PIECE_BYTES; // the product's bias, the norm's weight and bias
constexpr uint HALF_ROWS = VECTORS + 3 * COLUMNS * 4; // [2][ROWS] of mean and squared deviations, from the other thread block
constexpr uint BARRIERS = HALF_ROWS + 2 * ROWS * 8;
constexpr uint BYTES = BARRIERS + (2 * STAGES + WARPS) * 8;
static_assert(BYTES <= 232448, "a block has no more shared memory");
static_assert(CHUNKS > FIRST_CHUNKS && CHUNKS <= 2 * FIRST_CHUNKS, "the residual fits in two stages");

// Sends two floats to the cluster's thread block of this rank, whose barrier counts the bytes.
__device__ __forceinline__ void send(float2 *to, float2 v, uint64_t *barrier, uint rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there, barrier;\n"
        "mapa.shared::cluster.u32 there, %0, %4;\n"
        "mapa.shared::cluster.u32 barrier, %1, %4;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%2, %3}, [barrier];\n"
        "}\n" ::"r"(shared_address(to)), "r"(shared_address(barrier)), "f"(v.x), "f"(v.y), "r"(rank) : "memory");
}

// c += a for 16 rows and eight columns, as a product with the identity matrix: exact, and it takes
// a fragment as `ldmatrix_x4` loads it; single elements would each have to be loaded, widened and
// added.
template <typename T> __device__ __forceinline__ void add_eight(float *c, uint a0, uint a1, uint identity);
#define ADD_EIGHT(T, FORMAT) \
    template <> __device__ __forceinline__ void add_eight<T>(float *c, uint a0, uint a1, uint identity) { \
        asm("mma.sync.aligned.m16n8k8.row.col.f32." FORMAT "." FORMAT ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
            : "r"(a0), "r"(a1), "r"(identity)); \
    }
ADD_EIGHT(half_t, "f16")
ADD_EIGHT(bhalf_t, "bf16")

// Sum over the lanes that share a row.
__device__ __forceinline__ float row_sum(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

// Arguments besides the matrices.
template <typename T> struct Arguments {
    const T *bias, *norm_weight, *norm_bias;
    T *y;
    uint rows, k;
    float eps;
    uint from_end; // see `alternate_row_order` in call.rs
};

// BLOCKS: thread blocks per row.
template <typename T, uint BLOCKS>
__device__ void normed(const CUtensorMap *xs, const CUtensorMap *ws, const CUtensorMap *residuals, Arguments<T> args) {
    constexpr bool IS_WHOLE = BLOCKS == 1;
    extern __shared__ __align__(1024) unsigned char shared[];
    uint64_t *full = reinterpret_cast<uint64_t *>(shared + BARRIERS), *empty = full + STAGES, *received = empty + STAGES;
    if (threadIdx.x == 0) {
        for (uint i = 0; i < STAGES; i++) mbarrier_init(full + i, 1), mbarrier_init(empty + i, CLUSTER * WARPS);
        for (uint i = 0; i < WARPS; i++) mbarrier_init(received + i, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    grid_dependency_sync();
    trigger_dependent_launch();
    const uint rank = cluster_rank(), group = group_of_warp();
    const uint steps = (args.k + DEPTH - 1) / DEPTH;
    // The tiles of a cluster are above each other, or side by side.
    constexpr uint TILES_DOWN = IS_WHOLE ? CLUSTER : 1;
    const uint tiles = (args.rows + TILES_DOWN * ROWS - 1) / (TILES_DOWN * ROWS);
    const uint column0 = IS_WHOLE ? 0 : rank * COLUMNS;
    auto first_row = [&](uint tile) {
        const uint i = args.from_end ? tiles - 1 - tile : tile;
        return IS_WHOLE ? (i * CLUSTER + rank) * ROWS : i * ROWS;
    };

    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == GROUPS * GROUP) {
            PipelineState<STAGES> pipeline;
            for (uint tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
                const uint row = first_row(tile);
#pragma unroll 1 // to save registers
                for (uint step = 0; step < steps; step++, pipeline.next()) {
                    uint64_t *barrier = full + pipeline.stage;
                    unsigned char *x = shared + pipeline.stage * STAGE_BYTES, *w = x + X_BYTES;
                    const uint depth = step * DEPTH;
                    mbarrier_wait(empty + pipeline.stage, pipeline.phase ^ 1);
                    mbarrier_expect_tx(barrier, STAGE_BYTES);
                    if constexpr (IS_WHOLE) {
                        w += rank * W_BYTES;
                        for (uint i = 0; i < 2; i++) {
                            tma_load<true>(x + i * HALF_BYTES, xs, barrier, depth, row + i * HALF);
                            tma_load_multicast(w + i * (W_BYTES / 2), ws, barrier, depth, rank * TILE_COLUMNS + i * W_HALF);
                        }
                    } else {
                        tma_load_multicast<true>(x + rank * HALF_BYTES, xs, barrier, depth, row + rank * HALF);
                        for (uint i = 0; i < 4; i++) tma_load(w + i * (W_BYTES / 2), ws, barrier, depth, column0 + i * W_HALF);
                    }
                }
                for (uint first = 0; first < CHUNKS; first += FIRST_CHUNKS, pipeline.next()) {
                    uint64_t *barrier = full + pipeline.stage;
                    unsigned char *to = shared + pipeline.stage * STAGE_BYTES;
                    const uint chunks = min(FIRST_CHUNKS, CHUNKS - first);
                    mbarrier_wait(empty + pipeline.stage, pipeline.phase ^ 1);
                    mbarrier_expect_tx(barrier, chunks * CHUNK_BYTES);
                    for (uint i = 0; i < chunks * GROUPS; i++) {
                        const uint column = column0 + (first + i / GROUPS) * DEPTH;
                        tma_load<true>(to + i * HALF_BYTES, residuals, barrier, column, row + i % GROUPS * HALF);
                    }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
        EpilogueStaging<T> out(shared + OUT + warp * 2 * PIECE_BYTES, lane);
        auto release = [&](uint stage) {
            if (lane < CLUSTER) mbarrier_arrive_at_rank(empty + stage, lane);
        };
        // [bias, weight, bias][COLUMNS], for all tiles.
        float *vectors = reinterpret_cast<float *>(shared + VECTORS);
        for (uint i = threadIdx.x; i < COLUMNS; i += GROUPS * GROUP) {
            vectors[i] = args.bias ? wide(args.bias[column0 + i]) : 0.0f;
            vectors[COLUMNS + i] = wide(args.norm_weight[column0 + i]);
            vectors[2 * COLUMNS + i] = args.norm_bias ? wide(args.norm_bias[column0 + i]) : 0.0f;
        }
        asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * GROUP) : "memory");
        // The columns of a lane: two adjacent ones in every eight.
        const float2 *biases = reinterpret_cast<const float2 *>(vectors) + lane % 4;
        const float2 *norm_weights = biases + COLUMNS / 2, *norm_biases = norm_weights + COLUMNS / 2;
        const uint identity = pair_of<T>(lane / 4 == lane % 4 * 2, lane / 4 == lane % 4 * 2 + 1);
        PipelineState<STAGES> pipeline;
        uint number = 0;
        for (uint tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER, number++) {
            Sums sums[2];
            uint before = 0;
            for (uint step = 0; step < steps; step++, pipeline.next()) {
                const unsigned char *stage = shared + pipeline.stage * STAGE_BYTES;
                const uint64_t x = smem_descriptor(stage + group * HALF_BYTES);
                mbarrier_wait(full + pipeline.stage, pipeline.phase);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int d = 0; d < DEPTH; d += 16) {
#pragma unroll
                    for (uint side = 0; side < 2; side++) {
                        const uint64_t w = smem_descriptor(stage + X_BYTES + side * W_BYTES);
                        wgmma<T>(sums[side], x + d * 2 / 16, w + d * 2 / 16, step + d > 0);
                    }
                }
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                // This warp has read the stage before when all but the last products are done.
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (step > 0) release(before);
                before = pipeline.stage;
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            release(before);

            // Adds bias and residual, whose rows of 128 bytes are swizzled like x's, and sums up
            // the rows.
            float mean[2] = {}, squares[2] = {};
            const uint own = warp % 4 * PIECE_ROWS + lane / 4;
#pragma unroll
            for (uint sixteen = 0; sixteen < COLUMNS / 16; sixteen++) {
                if (sixteen * 16 % (FIRST_CHUNKS * DEPTH) == 0) mbarrier_wait(full + pipeline.stage, pipeline.phase);
                const uint chunk = sixteen * 16 / DEPTH % FIRST_CHUNKS, line = warp % 4 * PIECE_ROWS + lane % 16;
                const unsigned char *rows = shared + pipeline.stage * STAGE_BYTES + chunk * CHUNK_BYTES + group * HALF_BYTES;
                uint residual[4];
                ldmatrix_x4(residual, rows + line * 128 + ((sixteen % 4 * 2 + lane / 16) ^ lane % 8) * 16);
#pragma unroll
                for (uint i = 0; i < 2; i++) {
                    const uint eight = sixteen * 2 + i;
                    const float2 b = biases[eight * 4];
                    float *v = sums[eight / 24] + eight % 24 * 4;
                    add_eight<T>(v, residual[i * 2], residual[i * 2 + 1], identity);
                    v[0] += b.x, v[1] += b.y, v[2] += b.x, v[3] += b.y;
                    mean[0] += v[0] + v[1], mean[1] += v[2] + v[3];
                }
                if ((sixteen + 1) * 16 % (FIRST_CHUNKS * DEPTH) == 0 || sixteen + 1 == COLUMNS / 16) {
                    __syncwarp();
                    release(pipeline.stage);
                    pipeline.next();
                }
            }
#pragma unroll
            for (uint i = 0; i < 2; i++) mean[i] = row_sum(mean[i]) * (1.0f / COLUMNS);
#pragma unroll
            for (uint side = 0; side < 2; side++) {
#pragma unroll
                for (uint j = 0; j < TILE_COLUMNS / 2; j++) {
                    const float distance = sums[side][j] - mean[j / 2 % 2];
                    squares[j / 2 % 2] += distance * distance;
                }
            }
#pragma unroll
            for (uint i = 0; i < 2; i++) squares[i] = row_sum(squares[i]);
            if constexpr (!IS_WHOLE) {
                // Double-buffered: a thread block that is a tile ahead has already received the
                // values of this one.
                float2 *buffer = reinterpret_cast<float2 *>(shared + HALF_ROWS) + number % 2 * ROWS + group * HALF;
                uint64_t *barrier = received + warp;
                if (lane == 0) mbarrier_expect_tx(barrier, PIECE_ROWS * sizeof(float2));
                __syncwarp();
                const float2 mine = lane % 4 == 0 ? make_float2(mean[0], squares[0]) : make_float2(mean[1], squares[1]);
                if (lane % 4 < 2) send(buffer + own + lane % 4 * 8, mine, barrier, rank ^ 1);
                mbarrier_wait(barrier, number & 1);
#pragma unroll
                for (uint i = 0; i < 2; i++) {
                    const float2 other = buffer[own + i * 8];
                    const float apart = mean[i] - other.x;
                    squares[i] += other.y + apart * apart * (0.5f * COLUMNS);
                    mean[i] = (mean[i] + other.x) * 0.5f;
                }
            }
            float scale[2], shift[2];
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                scale[i] = rsqrtf(fmaf(squares[i], 1.0f / (BLOCKS * COLUMNS), args.eps));
                shift[i] = -mean[i] * scale[i];
            }

            const uint row = first_row(tile) + group * HALF + own;
            const bool first = row < args.rows, second = row + 8 < args.rows;
            constexpr uint WIDTH = BLOCKS * COLUMNS, PIECES = COLUMNS / PIECE_COLUMNS;
            T *to = args.y + size_t(row) * WIDTH + column0 + lane % 4 * 8;
            // The norm's weight and bias for a piece are loaded one piece ahead, too.
            float2 weight[4], bias[4];
            auto read = [&](uint piece) {
#pragma unroll
                for (uint i = 0; i < 4; i++) weight[i] = norm_weights[(piece * 4 + i) * 4], bias[i] = norm_biases[(piece * 4 + i) * 4];
            };
            read(0);
#pragma unroll
            for (uint piece = 0; piece < PIECES; piece++) {
                float v[16];
#pragma unroll
                for (uint i = 0; i < 16; i += 2) {
                    const uint eight = piece * 4 + i / 4, side = i / 2 % 2;
                    const float *of = sums[eight / 24] + eight % 24 * 4 + side * 2;
                    v[i] = fmaf(fmaf(of[0], scale[side], shift[side]), weight[i / 4].x, bias[i / 4].x);
                    v[i + 1] = fmaf(fmaf(of[1], scale[side], shift[side]), weight[i / 4].y, bias[i / 4].y);
                }
                if (piece + 1 < PIECES) read(piece + 1);
                out.put(v, piece);
                if (piece > 0) out.store(to + (piece - 1) * PIECE_COLUMNS, 8 * WIDTH, first, second);
                out.take(piece);
            }
            out.store(to + (PIECES - 1) * PIECE_COLUMNS, 8 * WIDTH, first, second);
        }
    }
    // A thread block must not exit before the other has sent or fetched everything for it.
    __syncwarp();
    cluster_sync();
}

#define NORMED(NAME, T, BLOCKS, WIDTH) \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1) linear_normed_##WIDTH##_##NAME( \
        const __grid_constant__ CUtensorMap xs, const __grid_constant__ CUtensorMap ws, const __grid_constant__ CUtensorMap residuals, \
        const T *bias, const T *norm_weight, const T *norm_bias, T *y, uint rows, uint k, float eps, \
        uint from_end) { \
        normed<T, BLOCKS>(&xs, &ws, &residuals, Arguments<T>{bias, norm_weight, norm_bias, y, rows, k, eps, from_end}); \
    }
#define WIDTHS(NAME, T) \
    NORMED(NAME, T, 1, 384) \
    NORMED(NAME, T, 2, 768)
WIDTHS(f16, half_t)
WIDTHS(bf16, bhalf_t)
