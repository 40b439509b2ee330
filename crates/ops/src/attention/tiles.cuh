// y = softmax(q · kᵀ · scale + bias) · v in f16 and bf16 with the scores of a block only, never all of them (Dao et al. 2022,
// arXiv:2205.14135; 2023, arXiv:2307.08691): keys come block by block, and what was summed so far is scaled when a larger score
// comes. Both products are the tensor cores', with sums in f32, and exponentials meet v in two parts, or in one: see rows.cuh.
//
// A row is a query of one head; the heads that share keys are rows of the same block, so that k and v are read once for all. Four
// warps take 16 rows each, all over the same keys; or eight of them, where there are as many rows and heads are larger than 64, since
// then half as much comes from the second-level cache. Where a sequence has no more than 16 rows in all (FEW), each of four warps takes
// other keys of them: there memory is the limit, and 15 rows of nothing cost nothing.
//
// A short sequence is over before a processor has hidden that it waited for its first keys. So where there are blocks enough, one
// takes several heads of the same rows in turn: the next head is on its way while one is multiplied.
//
// What most encoders ask for (STRAIGHT) is known to the compiler: see task.cuh. Disentangled positions (PLACED) are products too, of
// rows and of keys with the positions of their distances: see placed.cuh. Keys and values in blocks (CODED) are in two parts as well,
// since a code times its scale has more bits than 16: see coded.cuh.
#pragma once
#include "attention/coded.cuh"
#include "attention/leave.cuh"
#include "attention/placed.cuh"

constexpr uint NOWHERE = 0xffffffffu;

// D is the size of a head as it is in shared memory. Rows there are 16 bytes longer, so that eight of them begin in different
// banks. As in cuda.rs.
enum Kind : uint { FLOATS, STRAIGHT, PLACED, CODED };
template <uint D, bool FEW, uint WARPS, Kind KIND> struct Sizes {
    static constexpr uint THREADS = WARPS * LANES;
    static constexpr uint PITCH = D + 8;
    static constexpr uint ROWS = FEW ? 16 : 16 * WARPS;
    // So that a block stays below 99 KiB, which every card has.
    static constexpr uint KEYS = !FEW && D * WARPS >= 1024 ? 32 : 64;
    // Whether a block may have several heads in turn.
    static constexpr bool IN_TURN = !FEW && KIND <= STRAIGHT && D <= 64;
    static constexpr uint STAGES = D > 128 || KIND > STRAIGHT ? 1 : 2;
    // Heads of q that may be there at once: of sequences of one block of keys as many as there are stages.
    static constexpr uint QUERIES = IN_TURN ? STAGES : 1;
    // Keys that a warp takes of those.
    static constexpr uint OWN = FEW ? KEYS / WARPS : KEYS;
    // Whether there are registers to keep q in.
    static constexpr bool HELD = D <= 128;
    // Blocks that share a processor, and its registers: the more the better where they wait for memory.
    static constexpr uint SHARING = KIND == PLACED ? 2 : WARPS == 8 ? 1
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

// Calls `run(r, c)` for this thread's runs of eight elements of N vectors: the vector, and where in it.
template <uint D, uint N, uint THREADS, typename Run> __device__ __forceinline__ void for_runs(Run run) {
    constexpr uint RUNS = D / 8, TURNS = (N * RUNS + THREADS - 1) / THREADS;
#pragma unroll
    for (uint turn = 0; turn < TURNS; turn++) {
        const uint i = turn * THREADS + threadIdx.x;
        if (N * RUNS % THREADS == 0 || i < N * RUNS) run(i / RUNS, i % RUNS * 8);
    }
}

// N vectors of k and of v, which begin at the head; `row_of` says in which row vector r is, or NOWHERE.
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

// N vectors of D elements that are `step` elements apart, of which `left` are there; what encoders attend to was made for it, and is
// read here for the last time. A thread counts its one address on: each worked out by itself was a fifth of the kernel's instructions.
template <typename T, uint D, uint N, uint THREADS>
__device__ __forceinline__ void stage_straight(T *to, const T *from, uint step, int left) {
    constexpr uint RUNS = D / 8, ROWS = THREADS / RUNS;
    static_assert(THREADS % RUNS == 0 && N % ROWS == 0, "all threads have as many runs, of every so many rows");
    const uint row = threadIdx.x / RUNS, c = threadIdx.x % RUNS * 8;
    to += row * (D + 8) + c, from += size_t(row) * step + c;
#pragma unroll
    for (uint r = 0; r < N; r += ROWS, from += ROWS * step) copy_sixteen<true>(to + r * (D + 8), from, int(row + r) < left);
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

// The positions of all distances of a block of rows and keys, of which `nearest` is the least.
template <typename T, uint D, uint THREADS>
__device__ __forceinline__ void stage_positions(T *to, const T *keys, const T *queries, int nearest, uint head, const Shape &s,
    const uint *table) {
    for (uint i = threadIdx.x; i < DISTANCES * (D / 8); i += THREADS) {
        const uint c = i % (D / 8) * 8, row = position_row(nearest + int(i / (D / 8)), s, table);
        const bool there = c < s.size;
        T *at = to + i / (D / 8) * (D + 8) + c;
        const size_t met[2] = {s.position_keys.at(row, head) + c, s.position_queries.at(row, head) + c};
        if (keys) stage_eight(at, keys + (there ? met[0] : 0), there, s.size - c, s.in_sixteens);
        at += DISTANCES * (D + 8);
        if (queries) stage_eight(at, queries + (there ? met[1] : 0), there, s.size - c, s.in_sixteens);
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
__device__ __forceinline__ void attend(const Given<T> &given, const Shape &told) {
    const Shape s = KIND == STRAIGHT ? straight<D>(told) : told;
    using Z = Sizes<D, FEW, WARPS, KIND>;
    constexpr uint THREADS = Z::THREADS, PITCH = Z::PITCH, KEYS = Z::KEYS, STAGES = Z::STAGES, TILES = Z::OWN / 8;
    constexpr uint STAGE = 2 * KEYS * PITCH, HEAD = Z::ROWS * PITCH;
    // Key rows of so many blocks of keys: those that the copies under way read, and those that come.
    constexpr uint RING = STAGES < 2 ? 2 : STAGES;
    extern __shared__ uint4 memory[];
    __shared__ uint key_rows[RING][KEYS];
    T *held = reinterpret_cast<T *>(memory);   // [QUERIES][ROWS][PITCH]
    T *stages = held + Z::QUERIES * HEAD;      // [STAGES][k, v][KEYS][PITCH], of codes a second time with second parts
    T *placed = stages + STAGES * STAGE;       // [met by queries, by keys][DISTANCES][PITCH]
    const uint lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, *table = given.table;

    Task t;
    if (!find_task<Z::ROWS>(t, table, s)) return;
    // Steps are the rounds of one head, then those of the next. Who sees no keys has a round of none.
    const uint rounds = max((t.end - t.start + int(KEYS) - 1) / int(KEYS), 1), steps = rounds * (Z::IN_TURN ? s.turns : 1);
    auto queries = [&](T *to, const Task &of) {
        if constexpr (KIND == STRAIGHT) {
            stage_straight<T, D, Z::ROWS, THREADS>(to, given.q + s.q.at(of.token_of(0, s), of.head), s.q.token, of.rows);
        } else {
            stage_queries<T, D, Z::ROWS, THREADS>(to, given.q, of, s);
        }
    };
    queries(held, t);
    // Rows of keys in pages are looked up before they are asked for. Behind the last round come those of the next head, which are
    // the same.
    const bool in_pages = s.page != 0 || KIND == CODED;
    auto look_up = [&](uint round, uint i) {
        const int j = t.start + int((Z::IN_TURN && round >= rounds ? round % rounds : round) * KEYS + i);
        return j < t.end ? t.key_row(j, s, table) : NOWHERE;
    };
    if (in_pages) {
        for (uint i = threadIdx.x; i < STAGES * KEYS; i += THREADS) key_rows[i / KEYS][i % KEYS] = look_up(i / KEYS, i % KEYS);
        __syncthreads();
    }

    // Asks for the next step, if there is one.
    const uint first_head = t.head;
    uint asked = 0, asked_round = 0, asked_turn = 0;
    auto ask = [&] {
        if (asked < steps) {
            T *to = stages + asked % STAGES * STAGE;
            const uint *rows = key_rows[asked % RING], head = first_head + asked_turn;
            const int first = t.start + int(asked_round * KEYS);
            if (Z::IN_TURN && asked_round == 0 && asked_turn > 0) {
                Task next = t;
                next.head = head;
                queries(held + asked_turn % Z::QUERIES * HEAD, next);
            }
            if constexpr (KIND == CODED) {
                stage_coded<T, D, KEYS, THREADS>(to, STAGE, given.k, given.k_scales, s.k, head, rows, s.size);
                stage_coded<T, D, KEYS, THREADS>(to + KEYS * PITCH, STAGE, given.v, given.v_scales, s.v, head, rows, s.size);
            } else if constexpr (KIND == STRAIGHT) {
                const size_t row = t.base + uint(first);
                stage_straight<T, D, KEYS, THREADS>(to, given.k + s.k.at(row, head), s.k.token, t.end - first);
                stage_straight<T, D, KEYS, THREADS>(to + KEYS * PITCH, given.v + s.v.at(row, head), s.v.token, t.end - first);
            } else {
                const T *k = given.k + size_t(head) * s.k.head, *v = given.v + size_t(head) * s.v.head;
                stage<T, D, KEYS, THREADS>(to, k, v, s, [&](uint r) {
                    return in_pages ? rows[r] : first + int(r) < t.end ? t.base + uint(first) + r : NOWHERE;
                });
            }
            if constexpr (KIND == PLACED) {
                const int nearest = t.place + int(t.row) - first - int(KEYS - 1);
                stage_positions<T, D, THREADS>(placed, given.position_keys, given.position_queries, nearest, head, s, table);
            }
            asked++;
            if (++asked_round == rounds) {
                asked_round = 0;
                asked_turn++;
            }
        }
        end_of_copies();
    };
#pragma unroll 1
    for (uint i = 0; i < STAGES; i++) ask();

    // This lane's rows, r and r + 8, and what they see; then what some row of the warp sees, and what all of them do. Rows beyond
    // the last are taken for queries that follow it: nobody looks at what they give.
    const uint first_row = FEW ? 0 : warp * 16, r = first_row + lane / 4;
    const int places[2] = {t.place_of(r, s), t.place_of(r + 8, s)};
    const int nearest = t.place_of(first_row, s), farthest = t.place_of(first_row + 15, s);
    const bool plain = s.cap == 0.0f && s.added == ADDED_NONE && s.scale > 0.0f;
    // Exponents are of 2: what scores are multiplied with when they become exponents.
    const float unit = plain ? s.scale * LOG2E : LOG2E;
    // A warp's keys of a block.
    const uint own_keys = FEW ? warp * Z::OWN : 0;

    uint mq[D / 16][4];
    Sums<D> own;
    own.clear();
    T *q_rows = held;
    uint round = 0, turn = 0;
    for (uint step = 0; step < steps; step++) {
        // The rows that are asked for next, which have until the end of this step to come.
        uint next = NOWHERE;
        if (in_pages && threadIdx.x < KEYS) next = look_up(round + STAGES, threadIdx.x);
        if (step == 0) await_copies<STAGES - 1>();
        else await_copies<STAGES < 2 ? 0 : STAGES - 2>();
        __syncthreads(); // this step's is there, and the last step's has been read
        if (STAGES > 1 && step > 0) ask();
        const T *q_at = of_lane(q_rows + first_row * PITCH, PITCH);
        if (Z::HELD && round == 0) {
#pragma unroll
            for (uint i = 0; i < D / 16; i++) load_matrices(mq[i], q_at + i * 16);
        }
        const T *ks = stages + step % STAGES * STAGE, *vs = ks + KEYS * PITCH;
        const int key = t.start + int(round * KEYS + own_keys), beyond = key + int(Z::OWN);
        const bool sees = first_row < t.rows && key < min(farthest + s.ahead + 1, t.end) && beyond > nearest - s.back;
        float x[TILES][4] = {};
        if (sees) add_scores<T, D, Z::HELD, KIND == CODED>(x, mq, q_at, k_of_lane(ks + own_keys * PITCH, PITCH), STAGE);
        if constexpr (KIND == PLACED) {
            float *tiles = reinterpret_cast<float *>(placed + 2 * DISTANCES * PITCH);
            if (given.position_keys) add_met_by_queries<T, D>(x, mq, placed, tiles);
            if (given.position_queries) add_met_by_keys<T, D>(x, ks, placed + DISTANCES * PITCH, tiles);
        }
        if (sees) {
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
                        const bool seen = j >= place - s.back && j <= place + s.ahead && j < t.end;
                        x[n][e] = seen ? x[n][e] : -INFINITY;
                    }
                }
            }
            add_weighted<T, D, KIND == CODED, KIND != STRAIGHT>(own, x, of_lane(vs + own_keys * PITCH, PITCH), STAGE, unit);
        }
        if (in_pages && threadIdx.x < KEYS) key_rows[(step + STAGES) % RING][threadIdx.x] = next;
        if (STAGES == 1) {
            __syncthreads(); // what was staged has been read
            ask();
        }
        if (++round < rounds) continue;
        finish<D, KIND != STRAIGHT>(own, unit);
        if (FEW) leave_joined<T, D, WARPS>(own, reinterpret_cast<float *>(stages), given.y, given.parts, t, s);
        else if (t.parts > 1) leave_part<D, Z::ROWS>(own, first_row, given.parts, t, s);
        else leave_rows<T, D>(own, first_row, q_rows, given.y, t, s);
        if (step + 1 == steps) break;
        own.clear();
        round = 0;
        t.head++;
        q_rows = ++turn % Z::QUERIES == 0 ? held : q_rows + HEAD;
    }
    if (t.parts > 1 && is_last(table, t, s)) join<T, Z::ROWS>(given.parts, given.y, t, s);
}

#define KERNEL(NAME, T, D, CALLED, FEW, WARPS, KIND) \
    extern "C" __global__ void __launch_bounds__(WARPS * LANES, (Sizes<D, FEW, WARPS, KIND>::SHARING)) \
        attention_##CALLED##_##NAME##_##D(const T *q, const T *k, const T *v, const half_t *k_scales, const half_t *v_scales, \
            const T *position_keys, const T *position_queries, T *y, float *parts, const uint *table, SHAPE) { \
        wait_for_earlier(); \
        const Given<T> given = {q, k, v, k_scales, v_scales, position_keys, position_queries, y, parts, table}; \
        attend<T, D, FEW, WARPS, KIND>(given, GIVEN); \
    }
