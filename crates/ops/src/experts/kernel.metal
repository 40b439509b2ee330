// Mixture of experts: y = sum over a token's experts of p·act(x·Upᵀ)·Downᵀ + bias + residual, p by
// the router. The routing never leaves the device: one kernel selects experts, one sorts the pairs
// of token and expert by expert, one multiplies (up, then down; GEMM, or GEMV for few pairs), one
// adds up.

// As in Rust.
constant uint MAX_EXPERTS = 512;

struct Routing {
    uint tokens;
    uint n;
    uint stride;
    uint experts;
    uint top;
    // Whether the probabilities of the selected are renormalised to sum to one.
    uint renormalised;
};

// The experts of M tokens, the likeliest first and of equals the first, and their probabilities.
// All SIMD-groups compute the logits; one selects the experts of a token.
template <typename T, int M>
[[kernel]] void experts_route(device const T *x [[buffer(0)]], device const float *router [[buffer(1)]],
    device uint *selected [[buffer(2)]], device float *probabilities [[buffer(3)]], constant Routing &p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float logits[M * MAX_EXPERTS];
    Rows<T, M> xs;
    for (int m = 0; m < M; m++) {
        xs.at[m] = x + ulong(min(group * uint(M) + uint(m), p.tokens - 1)) * ulong(p.stride);
    }
    for (uint first = 4 * simd; first < p.experts; first += 4 * simds) {
        Rows<float, 4> ws;
        for (int r = 0; r < 4; r++) {
            ws.at[r] = router + ulong(min(first + uint(r), p.experts - 1)) * ulong(p.n);
        }
        Dots<4, M> dots;
        dot_rows<float, T, 4, M>(dots, ws, xs, p.n, FOURS, lane);
        for (int r = 0; r < 4; r++) {
            for (int m = 0; m < M; m++) {
                // Values beyond the last expert have space and are not read.
                if (lane == 0) {
                    logits[uint(m) * MAX_EXPERTS + first + uint(r)] = dots.of[r][m];
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint token = group * uint(M) + simd;
    if (simd >= uint(M) || token >= p.tokens) {
        return;
    }
    threadgroup const float *own = logits + simd * MAX_EXPERTS;
    // A bit for each expert lane, lane + 32, … that has been selected.
    uint taken = 0;
    float largest = 0.0f;
    float sum = 0.0f;
    // The lane's own expert: the first lane has the likeliest.
    uint mine = 0;
    for (uint s = 0; s < p.top; s++) {
        float best = -INFINITY;
        uint at = p.experts;
        for (uint e = lane; e < p.experts; e += LANES) {
            // NaN counts as largest: something must be selected, and the result shall be NaN.
            float logit = isnan(own[e]) ? INFINITY : own[e];
            if ((taken >> (e / LANES) & 1) == 0 && (at == p.experts || logit > best)) {
                best = logit;
                at = e;
            }
        }
        float highest = simd_max(best);
        uint winner = simd_min(best == highest ? at : p.experts);
        if (winner % LANES == lane) {
            taken |= 1u << (winner / LANES);
        }
        mine = lane == s ? winner : mine;
        largest = s == 0 ? own[winner] : largest;
        sum += precise::exp(own[winner] - largest);
    }
    if (p.renormalised == 0) {
        sum = 0.0f;
        for (uint e = lane; e < p.experts; e += LANES) {
            sum += precise::exp(own[e] - largest);
        }
        sum = simd_sum(sum);
    }
    if (lane < p.top) {
        selected[ulong(token) * ulong(p.top) + ulong(lane)] = mine;
        probabilities[ulong(token) * ulong(p.top) + ulong(lane)] = precise::exp(own[mine] - largest) / sum;
    }
}
#define ROUTES(M) \
KERNEL("experts_route" #M "_f32", experts_route<float, M>) \
KERNEL("experts_route" #M "_f16", experts_route<half, M>) \
KERNEL("experts_route" #M "_bf16", experts_route<bfloat, M>)
ROUTES(1)
ROUTES(4)

// The sum of `v` over the threadgroup, and in `below` over the SIMD-groups before this one. `part`
// has an element for each.
METAL_FUNC uint group_count(uint v, threadgroup uint *part, uint lane, uint simd, uint simds, thread uint &below) {
    v = simd_sum(v);
    threadgroup_barrier(mem_flags::mem_threadgroup); // an earlier call's parts have been read
    if (lane == 0) {
        part[simd] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint total = 0;
    below = 0;
    for (uint i = 0; i < simds; i++) {
        below += i < simd ? part[i] : 0;
        total += part[i];
    }
    return total;
}

// A threadgroup per expert, and one more for the end: computes where its pairs begin after sorting
// by expert, and their indices, in the order of tokens. The begin is the number of pairs of earlier
// experts, so that no threadgroup waits for another.
[[kernel]] void experts_sort(device const uint *selected [[buffer(0)]], device uint *starts [[buffer(1)]],
    device uint *sorted [[buffer(2)]], constant uint &pairs [[buffer(3)]], uint expert [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup uint part[32];
    uint before = 0;
    uint below = 0;
    for (uint i = tid; i < pairs; i += threads) {
        before += selected[i] < expert ? 1 : 0;
    }
    uint place = group_count(before, part, lane, simd, simds, below);
    if (tid == 0) {
        starts[expert] = place;
    }
    for (uint first = 0; first < pairs; first += threads) {
        uint i = first + simd * LANES + lane;
        uint is_own = i < pairs && selected[i] == expert ? 1 : 0;
        uint rank = simd_prefix_exclusive_sum(is_own);
        uint all = group_count(is_own, part, lane, simd, simds, below);
        if (is_own == 1) {
            sorted[place + below + rank] = i;
        }
        place += all;
    }
}

// Few pairs, each on its own: four results per SIMD-group. Pairs are in the order of tokens.
template <typename T>
[[kernel]] void experts_gemv(device const T *x [[buffer(0)]], device const uint *selected [[buffer(1)]],
    device const uint *unused [[buffer(2)]], device T *y [[buffer(3)]], constant Grouped &p [[buffer(4)]], WEIGHTS(T),
    uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
    uint pair = group.y;
    uint e = selected[pair] - p.first_expert;
    uint first = (group.x * simds + simd) * 4;
    // For experts before the first of this dispatch, e wraps to a large number.
    if (e >= p.experts || first >= p.n) {
        return;
    }
    device const T *w = WEIGHT(e);
    Rows<T, 1> xs;
    Rows<T, 4> ws;
    xs.at[0] = x + ulong(UP ? pair / p.top : pair) * ulong(p.stride);
    for (int r = 0; r < 4; r++) {
        ws.at[r] = w + ulong(min(first + uint(r), p.n - 1)) * ulong(p.k);
    }
    Dots<4, 1> dots;
    dot_rows<T, T, 4, 1>(dots, ws, xs, p.k, FOURS, lane);
    Dots<4, 1> gated;
    if (GATED) {
        for (int r = 0; r < 4; r++) {
            ws.at[r] += ulong(p.n) * ulong(p.k);
        }
        dot_rows<T, T, 4, 1>(gated, ws, xs, p.k, FOURS, lane);
    }
    write_gemv<T, 4>(dots, gated, y + ulong(pair) * ulong(p.n), first, p, lane);
}
FLOATS(experts_gemv)

// Many pairs: tiles of an expert's pairs. Up reads the rows of their tokens and writes in sorted
// order; down reads that order and writes each pair's row where the sum over its token expects it.
// With a gate, a SIMD-group's columns are half gates and half up projections.
template <typename T, int M, int N>
[[kernel]] void experts_tile(device const T *x [[buffer(0)]], device const uint *starts [[buffer(1)]],
    device const uint *sorted [[buffer(2)]], device T *y [[buffer(3)]], constant Grouped &p [[buffer(4)]], WEIGHTS(T),
    uint2 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float4 scratch[TILE_SCRATCH(M, N)];
    uint first = 0;
    uint end = 0;
    uint e = tile_expert<M>(starts, p, group.x, first, end);
    if (e == p.experts) {
        return;
    }
    device const T *w = WEIGHT(e);
    TILE_ROWS(T, M) xs;
    for (int i = 0; i < 16 * M / int(Tile<T>::AT_ONCE); i++) {
        xs.at[i] = x + ulong(tile_token(first + tile_row<T>(tid, i), end, sorted, p)) * ulong(p.stride);
    }
    TILE_ROWS(T, N) ws;
    for (int i = 0; i < 16 * N / int(Tile<T>::AT_ONCE); i++) {
        ws.at[i] = w + ulong(tile_output<N>(tile_row<T>(tid, i), group.y, p)) * ulong(p.k);
    }
    Sums<M, N> sums;
    tile_product<T, M, N>(sums, xs, ws, p.k, FOURS, scratch, tid, simd);
    put_tile<T, M, N>(sums, first, end, group.y, sorted, y, p, scratch, lane, simd);
}
#define TILES(NAME, M, N) \
KERNEL(NAME "_f32", experts_tile<float, M, N>) \
KERNEL(NAME "_f16", experts_tile<half, M, N>) \
KERNEL(NAME "_bf16", experts_tile<bfloat, M, N>)
TILES("experts_tile64", 4, 4)
TILES("experts_tile32", 2, 2)

struct Adding {
    uint n;
    uint top;
    uint residual_stride;
};

// The sum over a token's pairs. One rounding.
template <typename T>
[[kernel]] void experts_sum(device const T *parts [[buffer(0)]], device const float *probabilities [[buffer(1)]],
    device const T *bias [[buffer(2)]], device const T *residual [[buffer(3)]], device T *y [[buffer(4)]],
    constant Adding &p [[buffer(5)]], uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint2 threads [[threads_per_threadgroup]]) {
    uint column = group.x * threads.x + tid;
    if (column >= p.n) {
        return;
    }
    float sum = 0.0f;
    for (uint s = 0; s < p.top; s++) {
        ulong pair = ulong(group.y) * ulong(p.top) + ulong(s);
        sum = fma(probabilities[pair], float(parts[pair * ulong(p.n) + ulong(column)]), sum);
    }
    if (HAS_BIAS) {
        sum += float(bias[column]);
    }
    if (HAS_RESIDUAL) {
        sum += float(residual[ulong(group.y) * ulong(p.residual_stride) + ulong(column)]);
    }
    y[ulong(group.y) * ulong(p.n) + ulong(column)] = T(sum);
}
FLOATS(experts_sum)
