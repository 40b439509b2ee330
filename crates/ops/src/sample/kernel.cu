// Sampling of the next token from each row of logits: greedy, or random after temperature, top_k,
// top_p and min_p.
//
// Tokens are ordered by one number each, their rank key, which has no ties. First a row is cut into
// parts, a block each, because one block would take long over the whole row: every thread finds the
// largest key of its few tokens (a group), every block the largest of its part and the sum of its
// weights. If the row is greedy, the best of the parts is the result. Otherwise one block per row
// draws the token, from the results of the parts. A row is never sorted: a window
// holds its best tokens, in order, and the next window those after them, if they are needed. Sums
// are trees of a fixed order.
#include "launch/cuda/prelude.cuh"

using rank_key_t = unsigned long long;

// Tokens per group, and groups per part: one per thread.
constexpr uint GROUP = 32, PART = 128;
// Threads that draw from a row, and tokens of their window.
constexpr uint THREADS = 1024, WINDOW = 2 * THREADS;
// Tokens that each thread reads at once: with many threads, registers are few.
constexpr uint TOKENS_AT_ONCE = 8;

struct SamplingParams {
    float temperature;
    uint top_k;
    float top_p, min_p, u;
};

// Key of a logit that is not finite; no token has it.
constexpr rank_key_t NON_FINITE = ~rank_key_t(0);

// Rank key: rises with the logit, and of equal logits is largest for the lowest id; never 0.
__device__ __forceinline__ rank_key_t rank_key_of(float logit, uint id) {
    uint bits = __float_as_uint(logit);
    if ((bits & 0x7fffffffu) >= 0x7f800000u) return NON_FINITE;
    // Turns -0 into 0. Then the bits of positive floats rise with them, those of others fall.
    bits = (bits << 1) == 0 ? 0 : bits;
    const uint rising = (bits >> 31) == 0 ? bits | 0x80000000u : ~bits;
    return (rank_key_t(rising) << 32) | rank_key_t(~id);
}
__device__ __forceinline__ float logit_at(rank_key_t key) {
    const uint rising = uint(key >> 32);
    return __uint_as_float((rising >> 31) == 1 ? rising & 0x7fffffffu : ~rising);
}
__device__ __forceinline__ uint id_at(rank_key_t key) { return ~uint(key); }

// Weight of a token relative to the best, which has 1; 0 below f32's normal numbers.
__device__ __forceinline__ float weight_of(float logit, float best, float temperature) {
    const float x = (logit - best) / temperature;
    return x > -87.3f ? expf(x) : 0.0f;
}

__device__ __forceinline__ rank_key_t warp_max_key(rank_key_t v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v = max(v, __shfl_xor_sync(ALL_LANES, v, step));
    return v;
}

// Reductions, with the result in every thread. A barrier separates two calls of the same one, so
// that the shared memory of the first has been read.
__device__ __forceinline__ rank_key_t block_max_key(rank_key_t v, rank_key_t *part) {
    const uint lane = threadIdx.x % LANES;
    v = warp_max_key(v);
    if (lane == 0) part[threadIdx.x / LANES] = v;
    __syncthreads();
    return warp_max_key(lane < blockDim.x / LANES ? part[lane] : 0);
}
__device__ __forceinline__ uint block_min(uint v, uint *part) {
    v = __reduce_min_sync(ALL_LANES, v);
    if (threadIdx.x % LANES == 0) part[threadIdx.x / LANES] = v;
    __syncthreads();
    return __reduce_min_sync(ALL_LANES, part[threadIdx.x % LANES]); // 32 warps
}
// The sum over the threads before this one.
__device__ __forceinline__ float block_exclusive_sum(float v, float *part) {
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    float upto = v;
#pragma unroll
    for (uint step = 1; step < LANES; step *= 2) {
        const float before = __shfl_up_sync(ALL_LANES, upto, step);
        if (lane >= step) upto += before;
    }
    if (lane == LANES - 1) part[warp] = upto;
    const float before = __shfl_up_sync(ALL_LANES, upto, 1);
    __syncthreads();
    return warp_sum(lane < warp ? part[lane] : 0.0f) + (lane > 0 ? before : 0.0f);
}

// Group g of a row: its runs are a part's width apart, so that a part is read contiguously. Calls
// f(logit, id) for each of its tokens, several of which are read at once.
template <typename T, int N, uint AT_ONCE, typename F>
__device__ __forceinline__ void each_of(const T *x, uint n, uint g, F f) {
    constexpr uint RUNS = AT_ONCE / N;
    const uint first = g / PART * (PART * GROUP) + g % PART * N;
#pragma unroll 1
    for (uint from = first; from < n && from < first + GROUP * PART; from += AT_ONCE * PART) {
        Run<T, N> runs[RUNS];
#pragma unroll
        for (uint r = 0; r < RUNS; r++) {
            const uint i = from + r * PART * N;
            if (i < n) runs[r] = load<T, N>(x + i);
        }
#pragma unroll
        for (uint r = 0; r < RUNS; r++) {
            const uint i = from + r * PART * N;
            if (i >= n) break;
#pragma unroll
            for (int j = 0; j < N; j++) f(wide(runs[r].of[j]), i + j);
        }
    }
}

// First step. `groups` and `sums` are for rows of which a token is drawn; `all` is null if there is
// no such row.
template <typename T, int N>
__device__ void parts(const T *x, const SamplingParams *all, rank_key_t *bests, rank_key_t *groups, float *sums, uint n, uint stride) {
    __shared__ rank_key_t keys[LANES];
    __shared__ float part[LANES];
    const uint row = blockIdx.x, g = blockIdx.y * PART + threadIdx.x;
    const size_t at = size_t(row) * gridDim.y + blockIdx.y;
    x += size_t(row) * stride;
    rank_key_t own = 0;
    float logits[GROUP];
#pragma unroll
    for (uint k = 0; k < GROUP; k++) logits[k] = -INFINITY;
    uint k = 0;
    each_of<T, N, GROUP>(x, n, g, [&](float logit, uint id) {
        own = max(own, rank_key_of(logit, id));
        logits[k++] = logit;
    });
    const rank_key_t best = block_max_key(own, keys);
    if (threadIdx.x == 0) bests[at] = best;
    const float temperature = all ? all[row].temperature : 0.0f;
    if (temperature == 0.0f) return;
    groups[size_t(row) * gridDim.y * PART + g] = own;
    float sum = 0.0f;
#pragma unroll
    for (uint k = 0; k < GROUP; k++) sum += weight_of(logits[k], logit_at(best), temperature);
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) sums[at] = sum;
}

// Last step if every row is greedy: a warp per row.
__device__ void argmax(const rank_key_t *bests, uint *y, uint rows, uint parts) {
    const uint row = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES, lane = threadIdx.x % LANES;
    if (row >= rows) return;
    rank_key_t most = 0;
    for (uint i = lane; i < parts; i += LANES) most = max(most, bests[size_t(row) * parts + i]);
    most = warp_max_key(most);
    if (lane == 0) y[row] = most == NON_FINITE ? 0xffffffffu : id_at(most);
}

// Sorts a power of two of up to WINDOW numbers, the largest first. Synchronizes before and after.
// While compared numbers are at most 32 apart, each warp works alone on 64 of them.
__device__ void sort_descending(rank_key_t *v, uint count) {
    bool was_wide = true;
    for (uint size = 2; size <= count; size *= 2) {
        for (uint apart = size / 2; apart > 0; apart /= 2) {
            const bool is_wide = apart > LANES;
            if (is_wide || was_wide) __syncthreads();
            else __syncwarp();
            was_wide = is_wide;
            const uint i = threadIdx.x;
            if (i < count / 2) {
                const uint at = 2 * i - (i & (apart - 1));
                const rank_key_t a = v[at], b = v[at + apart];
                if ((a < b) == ((at & size) == 0)) {
                    v[at] = b;
                    v[at + apart] = a;
                }
            }
        }
    }
    __syncthreads();
}

// Shared memory of a block.
struct Scratch {
    // The window.
    rank_key_t found[WINDOW];
    // Each thread's largest key.
    rank_key_t thread_max[THREADS];
    float sums[LANES];
    uint ends[LANES];
    uint count;
    float sum;
};

// A row of logits, and the results of the first step for it.
template <typename T, int N> struct Logits {
    const T *x;
    uint n;
    // The largest key of each group.
    const rank_key_t *groups;
    uint group_count;
    float best, temperature;
    // Tokens in the first window; 0 while another window is loaded.
    uint first;
};

// Fills `found` with the best keys up to `upto`, in order, and returns their number.
//
// At least r keys reach the r-th largest of the threads' maxima, and few others do: those are
// collected. If there are too many, because few threads have most of the best, a smaller r is
// tried; r = 1 gives one. Groups whose maximum does not reach the threshold are not read again.
template <typename T, int N> __device__ uint window(const Logits<T, N> &row, rank_key_t upto, Scratch &scratch) {
    rank_key_t own = 0;
    for (uint g = threadIdx.x; g < row.group_count; g += THREADS) {
        const rank_key_t most = row.groups[g];
        if (most <= upto) own = max(own, most);
        else each_of<T, N, TOKENS_AT_ONCE>(row.x, row.n, g, [&](float logit, uint id) {
            const rank_key_t key = rank_key_of(logit, id);
            if (key <= upto) own = max(own, key);
        });
    }
    scratch.thread_max[threadIdx.x] = own;
    sort_descending(scratch.thread_max, THREADS);
    uint rank = THREADS / 2 - 1, count = 0;
    while (true) {
        const rank_key_t floor = max(scratch.thread_max[rank], rank_key_t(1));
        __syncthreads(); // the last window and count have been read
        if (threadIdx.x == 0) scratch.count = 0;
        __syncthreads();
        for (uint g = threadIdx.x; g < row.group_count; g += THREADS) {
            if (row.groups[g] < floor) continue;
            each_of<T, N, TOKENS_AT_ONCE>(row.x, row.n, g, [&](float logit, uint id) {
                const rank_key_t key = rank_key_of(logit, id);
                if (key >= floor && key <= upto) {
                    const uint at = atomicAdd(&scratch.count, 1u); // in any order: they are sorted afterwards
                    if (at < WINDOW) scratch.found[at] = key;
                }
            });
        }
        __syncthreads();
        count = scratch.count;
        if (count <= WINDOW) break;
        rank /= 8;
    }
    uint size = 2;
    while (size < count) size *= 2;
    for (uint i = count + threadIdx.x; i < size; i += THREADS) scratch.found[i] = 0;
    sort_descending(scratch.found, size);
    return count;
}

// Which tokens a walk takes, best first. It always takes the best.
struct Limits {
    // At most this many tokens (top_k),
    uint max_tokens;
    // while the cumulative weight before a token is below this (top_p),
    float sum_before;
    // while a token's weight is at least this, and more than 0 (min_p),
    float min_weight;
    // up to the first token whose cumulative weight exceeds this (the random draw).
    float target;
};

// The weight of the tokens that a walk took, and the last of them.
struct Taken {
    float sum;
    uint id;
};

template <typename T, int N> __device__ Taken walk(Logits<T, N> &row, Limits limits, Scratch &scratch) {
    Taken taken = {0.0f, 0};
    uint before = 0;
    rank_key_t upto = NON_FINITE;
    while (true) {
        uint count = row.first;
        if (before > 0 || count == 0) {
            count = window<T, N>(row, upto, scratch);
            row.first = before > 0 ? 0 : count;
        }
        if (count == 0) return taken;
        // Two neighbours per thread.
        float weights[2];
#pragma unroll
        for (uint j = 0; j < 2; j++) {
            const uint i = 2 * threadIdx.x + j;
            weights[j] = i < count ? weight_of(logit_at(scratch.found[i]), row.best, row.temperature) : 0.0f;
        }
        float sums[3];
        sums[0] = taken.sum + block_exclusive_sum(weights[0] + weights[1], scratch.sums);
        sums[1] = sums[0] + weights[0];
        sums[2] = sums[1] + weights[1];
        uint end = count;
#pragma unroll
        for (uint j = 0; j < 2; j++) {
            const uint i = 2 * threadIdx.x + j;
            const bool is_taken = before + i < limits.max_tokens && weights[j] > 0.0f && sums[j] < limits.sum_before && weights[j] >= limits.min_weight;
            if ((i > 0 || before > 0) && !is_taken) end = min(end, i);
            else if (sums[j + 1] > limits.target) end = min(end, i + 1);
        }
        end = block_min(end, scratch.ends);
        if (end > 0) {
            if (threadIdx.x == (end - 1) / 2) scratch.sum = (end - 1) % 2 == 0 ? sums[1] : sums[2];
            __syncthreads();
            taken.sum = scratch.sum;
            taken.id = id_at(scratch.found[end - 1]);
        }
        const rank_key_t last = scratch.found[count - 1];
        __syncthreads(); // this window and its sums have been read
        if (end < count || taken.sum > limits.target) return taken;
        before += count;
        upto = last - 1;
    }
}

// Last step if tokens are drawn: a block per row.
template <typename T, int N>
__device__ void draw(const T *x, const SamplingParams *all, const rank_key_t *bests, const rank_key_t *groups, const float *sums, uint *y, uint n,
    uint stride, uint parts) {
    __shared__ Scratch scratch;
    __shared__ rank_key_t keys[LANES];
    const SamplingParams params = all[blockIdx.x];
    const size_t first = size_t(blockIdx.x) * parts;
    rank_key_t own = 0;
    for (uint i = threadIdx.x; i < parts; i += THREADS) own = max(own, bests[first + i]);
    const rank_key_t best = block_max_key(own, keys);
    if (best == NON_FINITE || params.temperature == 0.0f) {
        if (threadIdx.x == 0) y[blockIdx.x] = best == NON_FINITE ? 0xffffffffu : id_at(best);
        return;
    }
    Logits<T, N> row = {x + size_t(blockIdx.x) * stride, n, groups + first * PART, parts * PART, logit_at(best), params.temperature, 0};
    const bool is_filtered = params.top_p < 1.0f || params.min_p > 0.0f;
    float total = INFINITY;
    if (params.top_k < n) {
        total = walk<T, N>(row, Limits{params.top_k, INFINITY, 0.0f, INFINITY}, scratch).sum;
    } else if (params.top_p < 1.0f || !is_filtered) {
        total = 0.0f;
        // Of each part, relative to its best.
        for (uint i = threadIdx.x; i < parts; i += THREADS) {
            total += sums[first + i] * weight_of(logit_at(bests[first + i]), row.best, params.temperature);
        }
        total = block_sum(total, scratch.sums);
        __syncthreads();
    }
    Limits limits = {params.top_k, params.top_p < 1.0f ? total * params.top_p : INFINITY, params.min_p, INFINITY};
    limits.target = params.u * (is_filtered ? walk<T, N>(row, limits, scratch).sum : total);
    const uint id = walk<T, N>(row, limits, scratch).id;
    if (threadIdx.x == 0) y[blockIdx.x] = id;
}

extern "C" __global__ void sample_argmax(const rank_key_t *bests, uint *y, uint rows, uint parts) {
    grid_dependency_sync();
    argmax(bests, y, rows, parts);
}
#define KIND(NAME, T, N, RUNS) \
    extern "C" __global__ void __launch_bounds__(PART) sample_parts_##RUNS##_##NAME(const T *x, const SamplingParams *all, rank_key_t *bests, \
        rank_key_t *groups, float *sums, uint n, uint stride) { \
        grid_dependency_sync(); \
        parts<T, N>(x, all, bests, groups, sums, n, stride); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) sample_draw_##RUNS##_##NAME(const T *x, const SamplingParams *all, \
        const rank_key_t *bests, const rank_key_t *groups, const float *sums, uint *y, uint n, uint stride, uint parts) { \
        grid_dependency_sync(); \
        draw<T, N>(x, all, bests, groups, sums, y, n, stride, parts); \
    }
#define SAMPLE(NAME, T) KIND(NAME, T, SIXTEEN<T>, aligned) KIND(NAME, T, 1, unaligned)
FORMATS(SAMPLE)
