#include <metal_stdlib>
using namespace metal;

// y = (x - mean) / sqrt(var + eps), one threadgroup per row: a correct kernel, and copies of it
// with one flaw each.
enum Flaw { NONE, MISSING_BARRIER, READS_PAST_ROW };

struct Row {
    uint length;
    uint index;
    uint thread_index;
    uint threads;
    uint lane;
    uint simdgroup;
    uint simdgroups;
};

METAL_FUNC float threadgroup_sum(float mine, threadgroup float *partial, Row row, bool with_barrier) {
    float sum = simd_sum(mine);
    if (row.lane == 0) { partial[row.simdgroup] = sum; }
    if (with_barrier) { threadgroup_barrier(mem_flags::mem_threadgroup); }
    float total = 0.0f;
    for (uint i = 0; i < row.simdgroups; i++) { total += partial[i]; }
    return total;
}

template <typename T, int FLAW>
METAL_FUNC void normalise(device const T *x, device T *y, float eps, threadgroup float *sums, threadgroup float *squares, Row row) {
    device const T *in = x + row.index * row.length;
    uint end = FLAW == READS_PAST_ROW ? row.length + 1 : row.length;
    bool with_barrier = FLAW != MISSING_BARRIER;
    float sum = 0.0f;
    for (uint i = row.thread_index; i < end; i += row.threads) { sum += float(in[i]); }
    float mean = threadgroup_sum(sum, sums, row, with_barrier) / float(row.length);
    float square = 0.0f;
    for (uint i = row.thread_index; i < row.length; i += row.threads) {
        float centred = float(in[i]) - mean;
        square += centred * centred;
    }
    float variance = threadgroup_sum(square, squares, row, with_barrier) / float(row.length);
    float scale = rsqrt(variance + eps);
    for (uint i = row.thread_index; i < row.length; i += row.threads) {
        y[row.index * row.length + i] = T((float(in[i]) - mean) * scale);
    }
}

template <typename T, int FLAW>
kernel void row_norm(
    device const T *x [[buffer(0)]],
    device T *y [[buffer(1)]],
    constant uint &length [[buffer(2)]],
    constant float &eps [[buffer(3)]],
    uint index [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float sums[32];
    threadgroup float squares[32];
    Row row = {length, index, thread_index, threads, lane, simdgroup, simdgroups};
    normalise<T, FLAW>(x, y, eps, sums, squares, row);
}

#define ROW_NORM(NAME, T, FLAW) \
    template [[host_name(NAME)]] kernel void row_norm<T, FLAW>( \
        device const T *, device T *, constant uint &, constant float &, uint, uint, uint, uint, uint, uint);
ROW_NORM("row_norm_f32", float, NONE)
ROW_NORM("row_norm_f16", half, NONE)
ROW_NORM("row_norm_bf16", bfloat, NONE)
ROW_NORM("row_norm_missing_barrier", float, MISSING_BARRIER)
ROW_NORM("row_norm_reads_past_row", float, READS_PAST_ROW)

// A barrier that some threads never reach.
kernel void divergent_barrier(device float *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    if (i > 40) { return; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = 1.0f;
}

// Threads of one threadgroup at two barriers.
kernel void split_barrier(device float *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    if (i < 32) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[i] = 1.0f;
    } else {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[i] = 2.0f;
    }
}

// Twice the memory of a threadgroup.
kernel void too_much_threadgroup_memory(device float *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float big[16384];
    big[i] = 1.0f;
    y[i] = big[i];
}
