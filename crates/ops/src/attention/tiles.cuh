// y = softmax(q · kᵀ · scale + bias) · v in f16 and bf16 with the scores of a block only, never all of them (Dao et al. 2022,
// arXiv:2205.14135; 2023, arXiv:2307.08691): keys come block by block, and what was summed so far is scaled when a larger score
// comes. Both products are the tensor cores', with sums in f32. Scores never leave registers: where they are as sums of the first
// product is where the second wants its left matrix.
//
// An exponential rounded to 16 bits would cost the result a second rounding, and of rows with many like keys more than one: their
// results are as small as the errors' sum. The worst elements are then off by up to 1.7 units, by emulation, where 0.8 is what the
// rounding of the result alone gives. So an exponential meets v in two parts, the second what rounding has left of the first.
//
// A row is a query of one head; the heads that share keys are rows of the same block, so that k and v are read once for all. Four
// warps take 16 rows each, all over the same keys; or eight of them, where there are as many rows, since then half as much comes
// from the second-level cache. Where a sequence has no more than 16 rows in all (FEW), each of four warps takes other keys of
// them: there memory is the limit, and 15 rows of nothing cost nothing.
//
// Disentangled positions (PLACED) are products too, of rows and of keys with the positions of their distances: see placed.cuh. Keys
// and values in blocks (CODED) are in two parts as well, since a code times its scale has more bits than 16: see coded.cuh.
#pragma once
#include "attention/coded.cuh"
#include "attention/mma.cuh"
#include "attention/placed.cuh"
#include "attention/task.cuh"

constexpr uint NOWHERE = 0xffffffffu;

// D is the size of a head as it is in shared memory. Rows there are 16 bytes longer, so that eight of them begin in different
// banks. As in cuda.rs.
enum Kind : uint { FLOATS, PLACED, CODED };
template <uint D, bool FEW, uint WARPS, Kind KIND> struct Sizes {
    static constexpr uint THREADS = WARPS * LANES;
    static constexpr uint PITCH = D + 8;
    static constexpr uint ROWS = FEW ? 16 : 16 * WARPS;
    // So that a block stays below 99 KiB, which every card has.
    static constexpr uint KEYS = !FEW && D * WARPS >= 1024 ? 32 : 64;
    static constexpr uint STAGES = D > 128 || KIND != FLOATS ? 1 : 2;
    // Keys that a warp takes of those.
    static constexpr uint OWN = FEW ? KEYS / WARPS : KEYS;
    // Whether there are registers to keep q in.
    static constexpr bool HELD = D <= 128;
    // Blocks that share a processor, and its registers: the more the better where they wait for memory.
    static constexpr uint SHARING = KIND == PLACED ? 2 : WARPS == 8 ? (D <= 64 ? 2 : 1)
        : FEW ? (D <= 64 ? 4 : D <= 128 ? 3 : 1) : D <= 32 ? 4 : D <= 64 ? 3 : 2;
};

// Eight elements to shared memory, of which there are `left` and the rest are zeros.
template <typename T>
__device__ __forceinline__ void stage_eight(T *to, const T *from, bool there, uint left, bool in_sixteens) {
    if (in_sixteens) {
        copy_sixteen(to, from, there);
        return;
    }
#pragma unroll
    for (uint j = 0; j < 8; j++) to[j] = there && j < left ? from[j] : narrow<T>(0.0f);
}

// The vectors of rows `rows` of k or v.
template <typename T, uint D, uint N, uint THREADS>
__device__ __forceinline__ void stage(T *to, const T *from, Steps steps, uint head, const uint *rows, const Shape &s) {
#pragma unroll
    for (uint i = threadIdx.x; i < N * (D / 8); i += THREADS) {
        const uint r = i / (D / 8), c = i % (D / 8) * 8, row = rows[r];
        const bool there = row != NOWHERE && c < s.size;
        stage_eight(to + r * (D + 8) + c, from + (there ? steps.at(row, head) + c : 0), there, s.size - c, s.in_sixteens);
    }
}

template <typename T> struct Given {
    const T *q;
    // Or codes.
    const T *k, *v;
    const half_t *k_scales, *v_scales;
    const T *position_keys, *position_queries;
    T *y;
    float *parts;
    const uint *table;
};

template <typename T, uint D, bool FEW, uint WARPS, Kind KIND>
__device__ __forceinline__ void attend(const Given<T> &given, const Shape &s) {
    const T *q = given.q, *position_keys = given.position_keys, *position_queries = given.position_queries;
    T *y = given.y;
    float *parts = given.parts;
    const uint *table = given.table;
    using Z = Sizes<D, FEW, WARPS, KIND>;
    constexpr uint THREADS = Z::THREADS, PITCH = Z::PITCH, KEYS = Z::KEYS, TILES = Z::OWN / 8;
    // From the first part of a key or value to the second, where there are two.
    constexpr uint REST = 2 * KEYS * PITCH;
    extern __shared__ uint4 memory[];
    __shared__ uint key_rows[2][KEYS];
    T *held = reinterpret_cast<T *>(memory);       // [ROWS][PITCH]
    T *stages = held + Z::ROWS * PITCH;            // [STAGES][k, v][KEYS][PITCH]
    T *placed = stages + Z::STAGES * 2 * KEYS * PITCH; // [met by queries, by keys][DISTANCES][PITCH]
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;

    Task t;
    if (!find_task<Z::ROWS>(t, table, s, blockIdx.x, s.splits)) return;

#pragma unroll
    for (uint i = threadIdx.x; i < Z::ROWS * (D / 8); i += THREADS) {
        const uint r = i / (D / 8), c = i % (D / 8) * 8;
        const bool there = r < t.rows && c < s.size;
        const size_t at = there ? s.q.at(t.token_of(r, s), t.head_of(r, s)) + c : 0;
        stage_eight(held + r * PITCH + c, q + at, there, s.size - c, s.in_sixteens);
    }
    auto row_of = [&](int j) { return j < t.end ? t.key_row(j, s, table) : NOWHERE; };
    for (uint i = threadIdx.x; i < 2 * KEYS; i += THREADS) key_rows[i / KEYS][i % KEYS] = row_of(t.start + int(i));
    __syncthreads();
    const int rounds = (t.end - t.start + int(KEYS) - 1) / int(KEYS);
    auto bring = [&](int round) {
        T *to = stages + round % int(Z::STAGES) * (2 * KEYS * PITCH);
        const uint *rows = key_rows[round % 2];
        if constexpr (KIND == CODED) {
            stage_coded<T, D, KEYS, THREADS>(to, REST, given.k, given.k_scales, s.k, t.head, rows, s.size);
            stage_coded<T, D, KEYS, THREADS>(to + KEYS * PITCH, REST, given.v, given.v_scales, s.v, t.head, rows, s.size);
        } else {
            stage<T, D, KEYS, THREADS>(to, given.k, s.k, t.head, rows, s);
            stage<T, D, KEYS, THREADS>(to + KEYS * PITCH, given.v, s.v, t.head, rows, s);
        }
        if constexpr (KIND == PLACED) {
            const int nearest = t.place + int(t.row) - (t.start + round * int(KEYS)) - int(KEYS - 1);
            for (uint i = threadIdx.x; i < DISTANCES * (D / 8); i += THREADS) {
                const uint c = i % (D / 8) * 8, row = position_row(nearest + int(i / (D / 8)), s, table);
                const bool there = c < s.size;
                T *at = placed + i / (D / 8) * PITCH + c;
                const size_t met[2] = {s.position_keys.at(row, t.head) + c, s.position_queries.at(row, t.head) + c};
                if (position_keys) stage_eight(at, position_keys + (there ? met[0] : 0), there, s.size - c, s.in_sixteens);
                at += DISTANCES * PITCH;
                if (position_queries) stage_eight(at, position_queries + (there ? met[1] : 0), there, s.size - c, s.in_sixteens);
            }
        }
    };
    if (rounds > 0) bring(0);
    end_of_copies();

    // This lane's rows, r and r + 8, and what they see; then what some row of the warp sees, and what all of them do. Rows beyond
    // the last are taken for queries that follow it: nobody looks at what they give.
    const uint first_row = FEW ? 0 : warp * 16, r = first_row + lane / 4;
    const int places[2] = {t.place_of(r, s), t.place_of(r + 8, s)};
    const uint heads[2] = {t.head_of(r, s), t.head_of(r + 8, s)};
    const int nearest = t.place_of(first_row, s), farthest = t.place_of(first_row + 15, s);
    const bool plain = s.cap == 0.0f && s.added == ADDED_NONE && s.scale > 0.0f;
    // Exponents are of 2: what scores are multiplied with when they become exponents.
    const float unit = plain ? s.scale * LOG2E : LOG2E;

    uint mq[D / 16][4];
    const T *q_at = held + (first_row + lane % 16) * PITCH + lane / 16 * 8;
    float o[D / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};

    for (int round = 0; round < rounds; round++) {
        const int first = t.start + round * int(KEYS);
        const bool more = round + 1 < rounds;
        // The row after next, which has until the end of this round to come.
        uint next = NOWHERE;
        if (threadIdx.x < KEYS) next = row_of(first + int(2 * KEYS + threadIdx.x));
        if (Z::STAGES == 2) {
            if (more) bring(round + 1);
            end_of_copies();
            await_copies<1>();
        } else {
            await_copies<0>();
        }
        __syncthreads();
        if (threadIdx.x < KEYS) key_rows[round % 2][threadIdx.x] = next;
        if (Z::HELD && round == 0) {
#pragma unroll
            for (uint i = 0; i < D / 16; i++) load_matrices(mq[i], q_at + i * 16);
        }
        const T *ks = stages + round % int(Z::STAGES) * (2 * KEYS * PITCH), *vs = ks + KEYS * PITCH;
        const uint own = FEW ? warp * Z::OWN : 0;
        const int key = first + int(own), beyond = key + int(Z::OWN);
        const bool sees = first_row < t.rows && key < min(farthest + s.ahead + 1, t.end) && beyond > nearest - s.back;
        float x[TILES][4] = {};
        if (sees) {
            const T *k_at = ks + (own + lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8;
#pragma unroll
            for (uint i = 0; i < D / 16; i++) {
                uint other[4];
                if (!Z::HELD) load_matrices(other, q_at + i * 16);
#pragma unroll
                for (uint n = 0; n < TILES; n += 2) {
                    uint mk[4];
                    load_matrices(mk, k_at + n * 8 * PITCH + i * 16);
                    multiply<T>(x[n], Z::HELD ? mq[i] : other, mk[0], mk[1]);
                    multiply<T>(x[n + 1], Z::HELD ? mq[i] : other, mk[2], mk[3]);
                    if constexpr (KIND == CODED) {
                        load_matrices(mk, k_at + REST + n * 8 * PITCH + i * 16);
                        multiply<T>(x[n], Z::HELD ? mq[i] : other, mk[0], mk[1]);
                        multiply<T>(x[n + 1], Z::HELD ? mq[i] : other, mk[2], mk[3]);
                    }
                }
            }
        }
        if constexpr (KIND == PLACED) {
            float *tiles = reinterpret_cast<float *>(placed + 2 * DISTANCES * PITCH);
            if (position_keys) add_met_by_queries<T, D>(x, mq, placed, tiles);
            if (position_queries) add_met_by_keys<T, D>(x, ks, placed + DISTANCES * PITCH, tiles);
        }
        if (sees) {
            if (!plain) {
#pragma unroll
                for (uint n = 0; n < TILES; n++) {
#pragma unroll
                    for (uint e = 0; e < 4; e++) {
                        const int j = key + int(n * 8 + lane % 4 * 2 + e % 2);
                        x[n][e] = finish_score(x[n][e] * s.scale, j, places[e / 2], heads[e / 2], s, table);
                    }
                }
            }
            if (key < farthest - s.back || beyond > min(nearest + s.ahead + 1, t.end)) {
#pragma unroll
                for (uint n = 0; n < TILES; n++) {
#pragma unroll
                    for (uint e = 0; e < 4; e++) {
                        const int j = key + int(n * 8 + lane % 4 * 2 + e % 2), place = places[e / 2];
                        const bool seen = j >= place - s.back && j <= place + s.ahead && j < t.end;
                        x[n][e] = seen ? x[n][e] : -INFINITY;
                    }
                }
            }
            float less[2], from[2];
#pragma unroll
            for (uint h = 0; h < 2; h++) {
                float largest = top[h];
#pragma unroll
                for (uint n = 0; n < TILES; n++) largest = fmaxf(largest, fmaxf(x[n][2 * h], x[n][2 * h + 1]));
                largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
                largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
                from[h] = below(largest) * unit;
                less[h] = top[h] == largest ? 1.0f : exp2_near(top[h] * unit - from[h]);
                top[h] = largest;
                sum[h] *= less[h];
            }
            if (__any_sync(ALL_LANES, less[0] != 1.0f || less[1] != 1.0f)) {
#pragma unroll
                for (uint i = 0; i < D / 8; i++) {
#pragma unroll
                    for (uint e = 0; e < 4; e++) o[i][e] *= less[e / 2];
                }
            }
            const T *v_at = vs + (own + lane % 16) * PITCH + lane / 16 * 8;
#pragma unroll
            for (uint n = 0; n < TILES; n += 2) {
                uint p[4], rest[4];
#pragma unroll
                for (uint h = 0; h < 4; h++) {
                    // Rows g and g + 8 of the first eight keys, then of the next.
                    float *of = x[n + h / 2] + h % 2 * 2;
#pragma unroll
                    for (uint e = 0; e < 2; e++) {
                        of[e] = exp2_near(fmaf(of[e], unit, -from[h % 2]));
                        sum[h % 2] += of[e];
                    }
                    p[h] = pair_of<T>(of[0], of[1]);
                    rest[h] = rest_of<T>(of[0], of[1], p[h]);
                }
#pragma unroll
                for (uint i = 0; i < D / 8; i += 2) {
                    uint mv[4];
                    load_transposed(mv, v_at + n * 8 * PITCH + i * 8);
                    multiply<T>(o[i], p, mv[0], mv[1]);
                    multiply<T>(o[i + 1], p, mv[2], mv[3]);
                    multiply<T>(o[i], rest, mv[0], mv[1]);
                    multiply<T>(o[i + 1], rest, mv[2], mv[3]);
                    if constexpr (KIND == CODED) {
                        load_transposed(mv, v_at + REST + n * 8 * PITCH + i * 8);
                        multiply<T>(o[i], p, mv[0], mv[1]);
                        multiply<T>(o[i + 1], p, mv[2], mv[3]);
                    }
                }
            }
        }
        __syncthreads(); // what was staged has been read
        if (Z::STAGES == 1 && more) {
            bring(round + 1);
            end_of_copies();
        }
    }

#pragma unroll
    for (uint h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 1);
        sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 2);
        top[h] *= unit;
    }
    const uint column = lane % 4 * 2;
    if (FEW) {
        // Of each warp, 16 rows of what it has of the result; they lie where keys were.
        __shared__ float tops[WARPS][16], sums[WARPS][16];
        constexpr uint LINE = D + 4;
        float *all = reinterpret_cast<float *>(stages);
        await_copies<0>();
        __syncthreads();
#pragma unroll
        for (uint i = 0; i < D / 8; i++) {
#pragma unroll
            for (uint e = 0; e < 4; e++) {
                all[(warp * 16 + lane / 4 + e / 2 * 8) * LINE + i * 8 + column + e % 2] = o[i][e];
            }
        }
        if (lane % 4 == 0) {
#pragma unroll
            for (uint h = 0; h < 2; h++) {
                tops[warp][lane / 4 + h * 8] = top[h];
                sums[warp][lane / 4 + h * 8] = sum[h];
            }
        }
        __syncthreads();
        // A warp has every fourth row.
        for (uint row = warp; row < t.rows; row += WARPS) {
            float most = -INFINITY, total = 0.0f, factor[WARPS];
#pragma unroll
            for (uint w = 0; w < WARPS; w++) most = fmaxf(most, tops[w][row]);
#pragma unroll
            for (uint w = 0; w < WARPS; w++) {
                factor[w] = exp2_near(tops[w][row] - below(most));
                total += factor[w] * sums[w][row];
            }
            const float over = t.parts > 1 ? 1.0f : total == 0.0f ? 0.0f : 1.0f / total;
            float *part = part_of(parts, s, blockIdx.x, Z::ROWS, row);
            for (uint c = lane; c < s.size; c += LANES) {
                float value = 0.0f;
#pragma unroll
                for (uint w = 0; w < WARPS; w++) value += factor[w] * all[(w * 16 + row) * LINE + c];
                if (t.parts > 1) part[c] = value;
                else y[t.line_of(row, s) + c] = narrow<T>(value * over);
            }
            if (t.parts > 1 && lane == 0) {
                part[s.size] = most;
                part[s.size + 1] = total;
            }
        }
    } else if (t.parts > 1) {
#pragma unroll
        for (uint h = 0; h < 2; h++) {
            const uint row = r + h * 8;
            if (row >= t.rows) continue;
            float *part = part_of(parts, s, blockIdx.x, Z::ROWS, row);
#pragma unroll
            for (uint i = 0; i < D / 8; i++) {
#pragma unroll
                for (uint e = 0; e < 2; e++) {
                    if (i * 8 + column + e < s.size) part[i * 8 + column + e] = o[i][2 * h + e];
                }
            }
            if (lane % 4 == 0) {
                part[s.size] = top[h];
                part[s.size + 1] = sum[h];
            }
        }
    } else {
        // Through the warp's own rows of q, so that 16 bytes are written at once.
        if (rounds == 0) await_copies<0>();
        __syncthreads();
#pragma unroll
        for (uint h = 0; h < 2; h++) {
            const float over = sum[h] == 0.0f ? 0.0f : 1.0f / sum[h];
#pragma unroll
            for (uint i = 0; i < D / 8; i++) {
                Run<T, 2> two = {narrow<T>(o[i][2 * h] * over), narrow<T>(o[i][2 * h + 1] * over)};
                put<T, 2>(held + (r + h * 8) * PITCH + i * 8 + column, two);
            }
        }
        __syncwarp();
        const bool in_sixteens = s.size % 8 == 0;
        for (uint i = lane; i < 16 * (D / 8); i += LANES) {
            const uint row = first_row + i / (D / 8), c = i % (D / 8) * 8;
            if (row >= t.rows || c >= s.size) continue;
            const Run<T, 8> eight = load<T, 8>(held + row * PITCH + c);
            T *to = y + t.line_of(row, s) + c;
            if (in_sixteens) {
                put<T, 8>(to, eight);
            } else {
#pragma unroll
                for (uint j = 0; j < 8; j++) {
                    if (c + j < s.size) to[j] = eight.of[j];
                }
            }
        }
    }
}

#define KERNEL(NAME, T, D, CALLED, FEW, WARPS, KIND) \
    extern "C" __global__ void __launch_bounds__(WARPS * LANES, (Sizes<D, FEW, WARPS, KIND>::SHARING)) \
        attention_##CALLED##_##NAME##_##D(const T *q, const T *k, const T *v, const half_t *k_scales, const half_t *v_scales, \
            const T *position_keys, const T *position_queries, T *y, float *parts, const uint *table, SHAPE) { \
        const Given<T> given = {q, k, v, k_scales, v_scales, position_keys, position_queries, y, parts, table}; \
        attend<T, D, FEW, WARPS, KIND>(given, GIVEN); \
    }
