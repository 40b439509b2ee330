#include <metal_stdlib>
using namespace metal;

// Lanes of a SIMD-group that diverge, and the order in which threads run.

[[kernel]] void half_of_the_lanes(device float *y [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    if (lane < 16) {
        float sum = simd_sum(1.0f);
        y[lane] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

[[kernel]] void two_operations(device float *y [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    if (lane < 16) {
        y[lane] = simd_sum(1.0f);
    } else {
        y[lane] = simd_max(float(lane));
    }
}

// The last lanes run one more iteration of a loop.
[[kernel]] void uneven_loop(device float *y [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    float sum = 0.0f;
    for (uint i = 0; i < 2 + lane / 30; i++) {
        sum += simd_sum(float(i));
    }
    y[lane] = simd_max(sum);
}

// All lanes that have not returned take part.
[[kernel]] void some_have_returned(device float *y [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    if (lane >= 16) {
        return;
    }
    y[lane] = simd_sum(1.0f);
}

// The order in which threads ran: before a SIMD operation, and after it.
[[kernel]] void places(device uint *y [[buffer(0)]], device atomic_uint *count [[buffer(1)]],
    uint i [[thread_position_in_grid]], uint threads [[threads_per_grid]]) {
    y[i] = atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
    simdgroup_barrier(mem_flags::mem_none);
    y[threads + i] = atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
}
