// FlashAttention in f16 and bf16: y = softmax(q · kᵀ · scale + bias) · v with only a block of
// scores at a time (Dao et al. 2022, arXiv:2205.14135; 2023, arXiv:2307.08691). Keys come block by
// block, and sums so far are rescaled when a larger score appears. Both products run on tensor
// cores with sums in f32; exponentials are multiplied with v in two parts or in one: see rows.cuh.
//
// A row is a query of one head; the heads that share a KV head (grouped-query attention, GQA) are
// rows of the same block, so that k and v are read once for all. Four warps take 16 rows each, all
// over the same keys; or eight warps, where there are enough rows and heads are larger than 64,
// which halves the reads from L2. If a sequence has at most 16 rows, as in decoding (DECODE), each
// of four warps takes different keys: memory bandwidth is the limit, and 15 padding rows cost
// nothing.
//
// A short sequence ends before a multiprocessor has hidden the latency of its first keys. So where
// there are enough blocks, a block takes several heads of the same rows in turn and copies the next
// head while it multiplies the current one.
//
// The case of most encoders (ENCODER) is specialized at compile time: see task.cuh. Disentangled
// positions (DISENTANGLED) are products too, of rows and of keys with the positions of their
// distances: see disentangled.cuh. Keys and values in Q8_0 blocks (Q8) come in two parts as well,
// because a code times its scale has more than 16 bits: see q8_kv.cuh.
#pragma once
#include "attention/q8_kv.cuh"
#include "attention/write_result.cuh"
#include "attention/disentangled.cuh"

constexpr uint NOWHERE = 0xffffffffu;

// D is the head size in shared memory. Rows there are padded by 16 bytes, so that eight of them
// start in different banks. As in cuda.rs.
enum Kind : uint { FLOATS, ENCODER, DISENTANGLED, Q8 };
template <uint D, bool DECODE, uint WARPS, Kind KIND> struct Sizes {
    static constexpr uint THREADS = WARPS * LANES;
    static constexpr uint PITCH = D + 8;
    static constexpr uint ROWS = DECODE ? 16 : 16 * WARPS;
    // Keeps a block below 99 KiB, which every card has.
    static constexpr uint KEYS = !DECODE && D * WARPS >= 1024 ? 32 : 64;
    // Whether a block may take several heads in turn.
    static constexpr bool IN_TURN = !DECODE && KIND <= ENCODER && D <= 64;
    static constexpr uint STAGES = D > 128 || KIND > ENCODER ? 1 : 2;
    // Heads of q in shared memory at once: as many as stages, for sequences with a single block of
    // keys.
    static constexpr uint QUERIES = IN_TURN ? STAGES : 1;
    // Keys that each warp takes.
    static constexpr uint OWN = DECODE ? KEYS / WARPS : KEYS;
    // Whether registers suffice to keep q in them.
    static constexpr bool HELD = D <= 128;
    // Blocks per multiprocessor, which share its registers: more are better where they wait for
    // memory.
    static constexpr uint SHARING = KIND == DISENTANGLED ? 2 : WARPS == 8 ? 1
        : DECODE ? (D <= 64 ? 4 : D <= 128 ? 3 : 1) : D <= 32 ? 4 : D <= 64 ? 3 : 2;
};

// Copies eight elements to shared memory, zeros beyond the `left` existing ones.
template <typename T>
__device__ __forceinline__ void stage_eight(T *to, const T *from, bool there, uint left, bool in_sixteens) {
    if (in_sixteens) {
        cp_async_16(to, from, there);
        return;
    }
#pragma unroll
    for (uint j = 0; j < 8; j++) to[j] = there && j < left ? from[j] : narrow<T>(0.0f);
}

// Calls `run(r, c)` for each run of eight elements of N vectors that this thread copies: vector r,
// element c.
template <uint D, uint N, uint THREADS, typename Run> __device__ __forceinline__ void for_runs(Run run) {
    constexpr uint RUNS = D / 8, TURNS = (N * RUNS + THREADS - 1) / THREADS;
#pragma unroll
    for (uint turn = 0; turn < TURNS; turn++) {
        const uint i = turn * THREADS + threadIdx.x;
        if (N * RUNS % THREADS == 0 || i < N * RUNS) run(i / RUNS, i % RUNS * 8);
    }
}

// Stages N vectors of k and of v of one head; `row_of` returns the row of vector r, or NOWHERE.
template <typename T, uint D, uint N, uint THREADS, typename Row>
__device__ __forceinline__ void stage(T *to, const T *k, const T *v, const Shape &s, Row row_of) {
    for_runs<D, N, THREADS>([&](uint r, uint c) {
        const uint row = row_of(r);
        const bool there = row != NOWHERE && c < s.size;
        const size_t at[2] = {there ? size_t(row) * s.k.token + c : 0, there ? size_t(row) * s.v.token + c : 0};
        stage_eight(to + r * (D + 8) + c, k + at[0], there, s.size - c, s.in_sixteens);
        stage_eight(to + (N + r) * (D + 8) + c, v + at[1], there, s.size - c, s.in_sixteens);
    });
}

// Stages N vectors of D elements, `step` elements apart, of which `left` exist. An encoder's k and
// v are read here for the last time. A thread increments a single address: computing each was a
// fifth of the kernel's instructions.
template <typename T, uint D, uint N, uint THREADS>
__device__ __forceinline__ void stage_encoder(T *to, const T *from, uint step, int left) {
    constexpr uint RUNS = D / 8, ROWS = THREADS / RUNS;
    static_assert(THREADS % RUNS == 0 && N % ROWS == 0, "every thread copies the same number of runs");
    const uint row = threadIdx.x / RUNS, c = threadIdx.x % RUNS * 8;
    to += row * (D + 8) + c, from += size_t(row) * step + c;
#pragma unroll
    for (uint r = 0; r < N; r += ROWS, from += ROWS * step) cp_async_16<true>(to + r * (D + 8), from, int(row + r) < left);
}

// The rows of a task in q.
template <typename T, uint D, uint ROWS, uint THREADS>
__device__ __forceinline__ void stage_queries(T *to, const T *q, const Task &t, const Shape &s) {
    for_runs<D, ROWS, THREADS>([&](uint r, uint c) {
        const bool there = r < t.rows && c < s.size;
        const size_t at = there ? s.q.at(t.token_of(r, s), t.head_of(r, s)) + c : 0;
        stage_eight(to + r * (D + 8) + c, q + at, there, s.size - c, s.in_sixteens);
    });
}

// The positions of all distances of a block of rows and keys; `nearest` is the smallest.
template <typename T, uint D, uint THREADS>
__device__ __forceinline__ void stage_positions(T *to, const T *keys, const T *queries, int nearest, uint head, const Shape &s,
    const uint *table) {
    for (uint i = threadIdx.x; i < DISTANCES * (D / 8); i += THREADS) {
        const uint c = i % (D / 8) * 8, row = position_row(nearest + int(i / (D / 8)), s, table);
        const bool there = c < s.size;
        T *at = to + i / (D / 8) * (D + 8) + c;
        const size_t offsets[2] = {s.position_keys.at(row, head) + c, s.position_queries.at(row, head) + c};
        if (keys) stage_eight(at, keys + (there ? offsets[0] : 0), there, s.size - c, s.in_sixteens);
        at += DISTANCES * (D + 8);
        if (queries) stage_eight(at, queries + (there ? offsets[1] : 0), there, s.size - c, s.in_sixteens);
    }
}

template <typename T> struct Args {
    const T *q;
    // Q8 codes if KIND is Q8.
    const T *k, *v;
    const half_t *k_scales, *v_scales;
    const T *position_keys, *position_queries;
    T *y;
    float *parts;
    const uint *table;
};

template <typename T, uint D, bool DECODE, uint WARPS, Kind KIND>
__device__ __forceinline__ void attend(const Args<T> &args, const Shape &params) {
    const Shape s = KIND == ENCODER ? encoder_shape<D>(params) : params;
    using Z = Sizes<D, DECODE, WARPS, KIND>;
    constexpr uint THREADS = Z::THREADS, PITCH = Z::PITCH, KEYS = Z::KEYS, STAGES = Z::STAGES, TILES = Z::OWN / 8;
    constexpr uint STAGE = 2 * KEYS * PITCH, HEAD = Z::ROWS * PITCH;
    // Key rows of RING blocks of keys: those of the copies in flight, and the next.
    constexpr uint RING = STAGES < 2 ? 2 : STAGES;
    extern __shared__ uint4 memory[];
    __shared__ uint key_rows[RING][KEYS];
    T *q_staged = reinterpret_cast<T *>(memory);   // [QUERIES][ROWS][PITCH]
    T *stages = q_staged + Z::QUERIES * HEAD; // [STAGES][k, v][KEYS][PITCH], for Q8 once more with the second parts
    T *positions = stages + STAGES * STAGE; // [content-to-position, position-to-content][DISTANCES][PITCH]
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, *table = args.table;

    Task t;
    if (!find_task<Z::ROWS>(t, table, s)) return;
    // Steps are the rounds of one head, then those of the next. Without visible keys there is one
    // empty round.
    const uint rounds = max((t.end - t.start + int(KEYS) - 1) / int(KEYS), 1), steps = rounds * (Z::IN_TURN ? s.turns : 1);
    auto queries = [&](T *to, const Task &of) {
        if constexpr (KIND == ENCODER) {
            stage_encoder<T, D, Z::ROWS, THREADS>(to, args.q + s.q.at(of.token_of(0, s), of.head), s.q.token, of.rows);
        } else {
            stage_queries<T, D, Z::ROWS, THREADS>(to, args.q, of, s);
        }
    };
    queries(q_staged, t);
    // Rows of paged keys are looked up one stage ahead of their copies. After the last round come
    // those of the next head, which are the same.
    const bool in_pages = s.page != 0 || KIND == Q8;
    auto lookup_row = [&](uint round, uint i) {
        const int j = t.start + int((Z::IN_TURN && round >= rounds ? round % rounds : round) * KEYS + i);
        return j < t.end ? t.key_row(j, s, table) : NOWHERE;
    };
    if (in_pages) {
        for (uint i = threadIdx.x; i < STAGES * KEYS; i += THREADS) key_rows[i / KEYS][i % KEYS] = lookup_row(i / KEYS, i % KEYS);
        __syncthreads();
    }

    // Starts the copies of the next step, if there is one.
    const uint first_head = t.head;
    uint issued = 0, issued_round = 0, issued_turn = 0;
    auto issue_copies = [&] {
        if (issued < steps) {
            T *to = stages + issued % STAGES * STAGE;
            const uint *rows = key_rows[issued % RING], head = first_head + issued_turn;
            const int first = t.start + int(issued_round * KEYS);
            if (Z::IN_TURN && issued_round == 0 && issued_turn > 0) {
                Task next = t;
                next.head = head;
                queries(q_staged + issued_turn % Z::QUERIES * HEAD, next);
            }
            if constexpr (KIND == Q8) {
                stage_q8<T, D, KEYS, THREADS>(to, STAGE, args.k, args.k_scales, s.k, head, rows, s.size);
                stage_q8<T, D, KEYS, THREADS>(to + KEYS * PITCH, STAGE, args.v, args.v_scales, s.v, head, rows, s.size);
            } else if constexpr (KIND == ENCODER) {
                const size_t row = t.base + uint(first);
                stage_encoder<T, D, KEYS, THREADS>(to, args.k + s.k.at(row, head), s.k.token, t.end - first);
                stage_encoder<T, D, KEYS, THREADS>(to + KEYS * PITCH, args.v + s.v.at(row, head), s.v.token, t.end - first);
            } else {
                const T *k = args.k + size_t(head) * s.k.head, *v = args.v + size_t(head) * s.v.head;
                stage<T, D, KEYS, THREADS>(to, k, v, s, [&](uint r) {
                    return in_pages ? rows[r] : first + int(r) < t.end ? t.base + uint(first) + r : NOWHERE;
                });
            }
            if constexpr (KIND == DISENTANGLED) {
                const int nearest = t.place + int(t.row) - first - int(KEYS - 1);
                stage_positions<T, D, THREADS>(positions, args.position_keys, args.position_queries, nearest, head, s, table);
            }
            issued++;
            if (++issued_round == rounds) {
                issued_round = 0;
                issued_turn++;
            }
        }
        cp_async_commit();
    };
#pragma unroll 1
    for (uint i = 0; i < STAGES; i++) issue_copies();

    // This lane's rows, r and r + 8, and their positions; then the first and last position of the
    // warp's rows. Rows beyond the last are computed as if they were queries, and discarded.
    const uint first_row = DECODE ? 0 : warp * 16, r = first_row + lane / 4;
    const int places[2] = {t.place_of(r, s), t.place_of(r + 8, s)};
    const int nearest = t.place_of(first_row, s), farthest = t.place_of(first_row + 15, s);
    const bool plain = s.cap == 0.0f && s.added == ADDED_NONE && s.scale > 0.0f;
    // Exponentials are powers of 2: scores are multiplied by this to become exponents.
    const float unit = plain ? s.scale * LOG2E : LOG2E;
    // This warp's first key in a block of keys.
    const uint own_keys = DECODE ? warp * Z::OWN : 0;

    uint mq[D / 16][4];
    Sums<D> own;
    own.clear();
    T *q_rows = q_staged;
    uint round = 0, turn = 0;
    for (uint step = 0; step < steps; step++) {
        // Key rows of the next copies; the loads have until the end of this step to arrive.
        uint next = NOWHERE;
        if (in_pages && threadIdx.x < KEYS) next = lookup_row(round + STAGES, threadIdx.x);
        if (step == 0) cp_async_wait<STAGES - 1>();
        else cp_async_wait<STAGES < 2 ? 0 : STAGES - 2>();
        __syncthreads(); // this step's copies have arrived, and the last step's have been read
        if (STAGES > 1 && step > 0) issue_copies();
        const T *q_at = of_lane(q_rows + first_row * PITCH, PITCH);
        if (Z::HELD && round == 0) {
#pragma unroll
            for (uint i = 0; i < D / 16; i++) ldmatrix_x4(mq[i], q_at + i * 16);
        }
        const T *ks = stages + step % STAGES * STAGE, *vs = ks + KEYS * PITCH;
        const int key = t.start + int(round * KEYS + own_keys), beyond = key + int(Z::OWN);
        const bool any_visible = first_row < t.rows && key < min(farthest + s.ahead + 1, t.end) && beyond > nearest - s.back;
        float x[TILES][4] = {};
        if (any_visible) add_scores<T, D, Z::HELD, KIND == Q8>(x, mq, q_at, k_of_lane(ks + own_keys * PITCH, PITCH), STAGE);
        if constexpr (KIND == DISENTANGLED) {
            float *tiles = reinterpret_cast<float *>(positions + 2 * DISTANCES * PITCH);
            if (args.position_keys) add_content_to_position<T, D>(x, mq, positions, tiles);
            if (args.position_queries) add_position_to_content<T, D>(x, ks, positions + DISTANCES * PITCH, tiles);
        }
        if (any_visible) {
            if (!plain) {
                const uint heads[2] = {t.head_of(r, s), t.head_of(r + 8, s)};
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
                        const bool visible = j >= place - s.back && j <= place + s.ahead && j < t.end;
                        x[n][e] = visible ? x[n][e] : -INFINITY;
                    }
                }
            }
            add_weighted<T, D, KIND == Q8, KIND != ENCODER>(own, x, of_lane(vs + own_keys * PITCH, PITCH), STAGE, unit);
        }
        if (in_pages && threadIdx.x < KEYS) key_rows[(step + STAGES) % RING][threadIdx.x] = next;
        if (STAGES == 1) {
            __syncthreads(); // what was staged has been read
            issue_copies();
        }
        if (++round < rounds) continue;
        finish<D, KIND != ENCODER>(own, unit);
        if (DECODE) write_joined<T, D, WARPS>(own, reinterpret_cast<float *>(stages), args.y, args.parts, t, s);
        else if (t.parts > 1) write_part<D, Z::ROWS>(own, first_row, args.parts, t, s);
        else write_rows<T, D>(own, first_row, q_rows, args.y, t, s);
        if (step + 1 == steps) break;
        own.clear();
        round = 0;
        t.head++;
        q_rows = ++turn % Z::QUERIES == 0 ? q_staged : q_rows + HEAD;
    }
    if (t.parts > 1 && is_last(table, t, s)) join<T, Z::ROWS>(args.parts, args.y, t, s);
}

#define KERNEL(NAME, T, D, CALLED, DECODE, WARPS, KIND) \
    extern "C" __global__ void __launch_bounds__(WARPS * LANES, (Sizes<D, DECODE, WARPS, KIND>::SHARING)) \
        attention_##CALLED##_##NAME##_##D(const T *q, const T *k, const T *v, const half_t *k_scales, const half_t *v_scales, \
            const T *position_keys, const T *position_queries, T *y, float *parts, const uint *table, SHAPE) { \
        grid_dependency_sync(); \
        const Args<T> args = {q, k, v, k_scales, v_scales, position_keys, position_queries, y, parts, table}; \
        attend<T, D, DECODE, WARPS, KIND>(args, ARGS); \
    }
