// behind ../../quant/formats.metal
// behind ../../quant/products.metal
// behind ../grouped.metal
// Products of experts with quantized weights. Routing, sorting and adding up are as for floats.

// Few pairs, each on its own. Pairs are in the order of tokens.
template <typename T, typename F>
[[kernel]] void experts_gemv(device const T *x [[buffer(0)]], device const uint *selected [[buffer(1)]],
    device const uint *unused [[buffer(2)]], device T *y [[buffer(3)]], constant Grouped &p [[buffer(4)]], WEIGHTS(uchar),
    constant ushort *grid [[buffer(21)]], uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
    uint pair = group.y;
    uint e = selected[pair] - p.first_expert;
    uint first = (group.x * simds + simd) * OUTPUTS;
    // For experts before the first of this dispatch, e wraps to a large number.
    if (e >= p.experts || first >= p.n) {
        return;
    }
    device const uchar *w = WEIGHT(e);
    Rows<T, 1> xs;
    Rows<uchar, OUTPUTS> ws;
    xs.at[0] = x + ulong(UP ? pair / p.top : pair) * ulong(p.stride);
    for (int o = 0; o < OUTPUTS; o++) {
        ws.at[o] = w + ulong(min(first + uint(o), p.n - 1)) * ulong(p.bytes);
    }
    Dots<OUTPUTS, 1> dots;
    block_dots<T, F, 1>(dots, ws, grid, xs, 1, p.k, FOURS, lane);
    Dots<OUTPUTS, 1> gated;
    if (GATED) {
        for (int o = 0; o < OUTPUTS; o++) {
            ws.at[o] += ulong(p.n) * ulong(p.bytes);
        }
        block_dots<T, F, 1>(gated, ws, grid, xs, 1, p.k, FOURS, lane);
    }
    write_gemv<T, OUTPUTS>(dots, gated, y + ulong(pair) * ulong(p.n), first, p, lane);
}

// Many pairs: tiles of an expert's pairs.
template <typename T, typename S, typename F>
[[kernel]] void experts_tile(device const T *x [[buffer(0)]], device const uint *starts [[buffer(1)]],
    device const uint *sorted [[buffer(2)]], device T *y [[buffer(3)]], constant Grouped &p [[buffer(4)]], WEIGHTS(uchar),
    constant ushort *grid [[buffer(21)]], uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float4 scratch[BLOCK_SCRATCH(S)];
    uint first = 0;
    uint end = 0;
    uint e = tile_expert<BLOCK_TALL>(starts, p, group.x, first, end);
    if (e == p.experts) {
        return;
    }
    device const uchar *w = WEIGHT(e);
    device const T *xs = x + ulong(tile_token(first + block_row(tid), end, sorted, p)) * ulong(p.stride);
    device const uchar *ws = w + ulong(tile_output<BLOCK_WIDE>(block_output(tid), group.y, p)) * ulong(p.bytes);
    BlockSums sums;
    block_product<T, S, F>(sums, xs, ws, grid, p.k, FOURS, scratch, tid, simd);
    put_tile<T, BLOCK_TALL, BLOCK_WIDE>(sums, first, end, group.y, sorted, y, p, scratch, lane, simd);
}

#define EVERY(NAME, F) \
KERNEL("experts_gemv_" NAME "_f32", experts_gemv<float, F>) \
KERNEL("experts_gemv_" NAME "_f16", experts_gemv<half, F>) \
KERNEL("experts_gemv_" NAME "_bf16", experts_gemv<bfloat, F>) \
KERNEL("experts_tile_" NAME "_f32", experts_tile<float, float, F>) \
KERNEL("experts_tile_" NAME "_f16", experts_tile<half, half, F>) \
KERNEL("experts_tile_" NAME "_bf16", experts_tile<bfloat, float, F>)
EVERY_FORMAT(EVERY)
