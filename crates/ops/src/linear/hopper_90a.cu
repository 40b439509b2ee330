// Matrix products (GEMM), y = act(x · Wᵀ + b) + residual for many rows on Hopper: tiles of
// 128 × 128 by warpgroup products (wgmma), sums in f32, one rounding.
//
// The kernel is persistent: a thread block stays on its multiprocessor and takes tile after tile.
// One producer warp has TMA fetch the operands into a ring of stages; two consumer warpgroups take
// turns with whole tiles (ping-pong), so that one multiplies while the other runs its epilogue: at
// the short depths of encoders the epilogue, GELU above all, takes as long as the product. Stages
// are filled in the order of the tiles.
#include "linear/hopper.cuh"

constexpr int TILE = 128;
constexpr int STAGES = 4;
constexpr int CONSUMERS = 2;
constexpr int STAGE_BYTES = 2 * TILE * DEPTH * 2;
// The epilogue passes 16 rows at a time through shared memory, for each warp. A stride of 8 more
// than a multiple of 32 keeps eight rows of two columns in different banks.
constexpr int STRIP_STEP = TILE + 8;
constexpr int STRIP_FLOATS = 16 * STRIP_STEP;

// d += 64 rows of x · 128 rows of Wᵀ over a depth of 16; without `more`, d = ….
#define WGMMA(FORMAT) \
    asm volatile( \
        "{\n" \
        ".reg .pred p;\n" \
        "setp.ne.b32 p, %66, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." FORMAT "." FORMAT " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
        "%64, %65, p, 1, 1, 0, 0;\n" \
        "}\n" \
        : SUMS8(d, 0), SUMS8(d, 8), SUMS8(d, 16), SUMS8(d, 24), SUMS8(d, 32), SUMS8(d, 40), SUMS8(d, 48), SUMS8(d, 56) \
        : "l"(a), "l"(b), "r"(more))
template <typename T> __device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b, int more);
template <> __device__ __forceinline__ void wgmma<half_t>(float (&d)[64], uint64_t a, uint64_t b, int more) { WGMMA("f16"); }
template <> __device__ __forceinline__ void wgmma<bhalf_t>(float (&d)[64], uint64_t a, uint64_t b, int more) { WGMMA("bf16"); }

// Epilogue: none, GELU, or one of the others, which are rare.
enum Epilogue { PLAIN, WITH_GELU, WITH_ANY };

template <typename T, Epilogue EPILOGUE>
__device__ void product(const CUtensorMap *xs, const CUtensorMap *ws, const T *bias, const T *residual, T *y, Sizes s,
    uint activation) {
    extern __shared__ __align__(1024) unsigned char shared[];
    T *stages = reinterpret_cast<T *>(shared);
    float *strips = reinterpret_cast<float *>(shared + STAGES * STAGE_BYTES);
    uint64_t *full = reinterpret_cast<uint64_t *>(strips + CONSUMERS * 4 * STRIP_FLOATS);
    uint64_t *empty = full + STAGES, *turns = empty + STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) mbarrier_init(full + i, 1), mbarrier_init(empty + i, GROUP / LANES);
        for (int i = 0; i < CONSUMERS; i++) mbarrier_init(turns + i, GROUP / LANES);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    grid_dependency_sync();
    trigger_dependent_launch();
    const uint columns = (s.n + TILE - 1) / TILE, tiles = (s.rows + TILE - 1) / TILE * columns, steps = (s.k + DEPTH - 1) / DEPTH;
    const uint group = threadIdx.x / GROUP;

    if (group == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x != CONSUMERS * GROUP) return;
        PipelineState<STAGES> pipeline;
        for (uint tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            for (uint step = 0; step < steps; step++, pipeline.next()) {
                mbarrier_wait(empty + pipeline.stage, pipeline.phase ^ 1);
                mbarrier_expect_tx(full + pipeline.stage, STAGE_BYTES);
                T *x = stages + pipeline.stage * (STAGE_BYTES / 2);
                tma_load(x, xs, full + pipeline.stage, step * DEPTH, tile / columns * TILE);
                tma_load(x + TILE * DEPTH, ws, full + pipeline.stage, step * DEPTH, tile % columns * TILE);
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x % GROUP / LANES;
    float *strip = strips + (group * 4 + warp) * STRIP_FLOATS;
    PipelineState<STAGES> pipeline;
    uint number = 0;
    for (uint tile = blockIdx.x; tile < tiles; tile += gridDim.x, number++) {
        if (number % CONSUMERS != group) {
            pipeline.skip(steps);
            continue;
        }
        // A barrier distinguishes only the last use of its stage from the one before, so a
        // warpgroup must not run ahead by more.
        mbarrier_wait(turns + group, (number / CONSUMERS + group + 1) & 1);
        float sums[2][64];
        uint before = 0;
        for (uint step = 0; step < steps; step++, pipeline.next()) {
            mbarrier_wait(full + pipeline.stage, pipeline.phase);
            const T *x = stages + pipeline.stage * (STAGE_BYTES / 2);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int d = 0; d < DEPTH; d += 16) {
                const uint64_t w = smem_descriptor(x + TILE * DEPTH) + d * 2 / 16;
                wgmma<T>(sums[0], smem_descriptor(x) + d * 2 / 16, w, step + d > 0);
                wgmma<T>(sums[1], smem_descriptor(x + 64 * DEPTH) + d * 2 / 16, w, step + d > 0);
            }
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            // This warp has read the stage before when all but the last products are done.
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (step > 0 && lane == 0) mbarrier_arrive(empty + before);
            before = pipeline.stage;
        }
        if (lane == 0) mbarrier_arrive(turns + (group + 1) % CONSUMERS);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (lane == 0) mbarrier_arrive(empty + before);

        // A lane has two adjacent elements of rows lane / 4 and lane / 4 + 8 in every eight
        // columns, and finishes two groups of four of a row, half a tile apart. This is a loop,
        // although the sums, which are registers, have to be indexed explicitly: unrolled, there
        // would be so many instructions that fetching them took longer than everything else.
        const uint row0 = tile / columns * TILE + warp * 16 + lane / 16, column0 = tile % columns * TILE + lane % 16 * 4;
        bool there[2];
        Run<T, 4> b[2] = {};
#pragma unroll
        for (int c = 0; c < 2; c++) {
            there[c] = column0 + c * 64 < s.n;
            if (bias && there[c]) b[c] = load<T, 4>(bias + s.first + column0 + c * 64);
        }
        constexpr int ROWS = EPILOGUE == WITH_ANY ? 1 : 8; // rows at once
#pragma unroll
        for (int half = 0; half < 2; half++) {
            __syncwarp(); // the strip has been read
#pragma unroll
            for (int i = 0; i < TILE / 8; i++) {
                const float *d = sums[half] + i * 4;
                float *to = strip + lane / 4 * STRIP_STEP + i * 8 + lane % 4 * 2;
                *reinterpret_cast<float2 *>(to) = make_float2(d[0], d[1]);
                *reinterpret_cast<float2 *>(to + 8 * STRIP_STEP) = make_float2(d[2], d[3]);
            }
            __syncwarp();
#pragma unroll 1
            for (uint first = 0; first < 8; first += ROWS) {
                Run<T, 4> added[ROWS][2] = {};
                if (residual) {
#pragma unroll
                    for (int i = 0; i < ROWS; i++) {
                        const uint row = row0 + half * 64 + (first + i) * 2;
                        const T *from = residual + size_t(row) * s.residual_step + s.first + column0;
#pragma unroll
                        for (int c = 0; c < 2; c++) {
                            if (row < s.rows && there[c]) added[i][c] = load<T, 4>(from + c * 64);
                        }
                    }
                }
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    const uint row = row0 + half * 64 + (first + i) * 2;
                    const float *from = strip + ((first + i) * 2 + lane / 16) * STRIP_STEP + lane % 16 * 4;
                    T *to = y + size_t(row) * s.width + s.first + column0;
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const float4 sum = *reinterpret_cast<const float4 *>(from + c * 64);
                        float v[4] = {sum.x, sum.y, sum.z, sum.w};
                        Run<T, 4> out;
#pragma unroll
                        for (int j = 0; j < 4; j++) {
                            v[j] += wide(b[c].of[j]);
                            if (EPILOGUE == WITH_GELU) v[j] = gelu_half(v[j]);
                            if (EPILOGUE == WITH_ANY) v[j] = activate(v[j], activation);
                            out.of[j] = narrow<T>(v[j] + wide(added[i][c].of[j]));
                        }
                        if (row < s.rows && there[c]) put<T, 4>(to + c * 64, out);
                    }
                }
            }
        }
    }
}

#define HOPPER(NAME, T, KIND, EPILOGUE) \
    extern "C" __global__ void __launch_bounds__((CONSUMERS + 1) * GROUP, 1) linear_hopper_##KIND##_##NAME( \
        const __grid_constant__ CUtensorMap xs, const __grid_constant__ CUtensorMap ws, const T *bias, const T *residual, T *y, \
        SIZES) { \
        product<T, EPILOGUE>(&xs, &ws, bias, residual, y, ARGS, activation); \
    }
#define KINDS(NAME, T) HOPPER(NAME, T, plain, PLAIN) HOPPER(NAME, T, gelu, WITH_GELU) HOPPER(NAME, T, any, WITH_ANY)
KINDS(f16, half_t)
KINDS(bf16, bhalf_t)
