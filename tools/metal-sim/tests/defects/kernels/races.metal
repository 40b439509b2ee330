#include <metal_stdlib>
using namespace metal;

// Threads that access the same memory. Of each pair of kernels, one orders the accesses and the
// other does not. All run with 64 threads per threadgroup.

// A thread reads what a thread of the other SIMD-group wrote.
template <bool WITH_BARRIER>
[[kernel]] void neighbours(device float *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float shared[64];
    shared[i] = float(i);
    if (WITH_BARRIER) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    y[i] = shared[63 - i];
}
template [[host_name("neighbours")]] [[kernel]] decltype(neighbours<true>) neighbours<true>;
template [[host_name("neighbours_race")]] [[kernel]] decltype(neighbours<false>) neighbours<false>;

// The same within a SIMD-group. A SIMD-group barrier is enough if it orders memory.
template <uint FLAGS>
[[kernel]] void lanes(device float *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float shared[64];
    shared[i] = float(i);
    simdgroup_barrier(mem_flags(FLAGS));
    y[i] = shared[i ^ 1];
}
template [[host_name("lanes")]] [[kernel]] decltype(lanes<2>) lanes<2>;
template [[host_name("lanes_race")]] [[kernel]] decltype(lanes<0>) lanes<0>;

// All threads read an element that one thread writes afterwards.
template <bool WITH_BARRIER>
[[kernel]] void overwrites(device float *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float shared[1];
    if (i == 0) {
        shared[0] = 1.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = shared[0];
    if (WITH_BARRIER) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (i == 63) {
        shared[0] = 2.0f;
    }
}
template [[host_name("overwrites")]] [[kernel]] decltype(overwrites<true>) overwrites<true>;
template [[host_name("overwrites_race")]] [[kernel]] decltype(overwrites<false>) overwrites<false>;

// Threads of a threadgroup share device memory, which a barrier with mem_threadgroup does not
// order.
template <uint FLAGS>
[[kernel]] void through_device(device float *y [[buffer(0)]], device float *x [[buffer(1)]],
    uint i [[thread_index_in_threadgroup]]) {
    x[i] = float(i);
    threadgroup_barrier(mem_flags(FLAGS));
    y[i] = x[63 - i];
}
template [[host_name("through_device")]] [[kernel]] decltype(through_device<1>) through_device<1>;
template [[host_name("through_device_race")]] [[kernel]] decltype(through_device<2>) through_device<2>;

// Each threadgroup writes its part of a buffer; in the racing kernel, one element too many.
template <uint TOO_MANY>
[[kernel]] void parts(device half *y [[buffer(0)]], uint group [[threadgroup_position_in_grid]],
    uint i [[thread_index_in_threadgroup]]) {
    for (uint at = i; at < 63 + TOO_MANY; at += 64) {
        y[group * 63 + at] = half(1.0f);
    }
}
template [[host_name("parts")]] [[kernel]] decltype(parts<0>) parts<0>;
template [[host_name("parts_race")]] [[kernel]] decltype(parts<1>) parts<1>;

// A threadgroup reads what another writes, whichever runs first.
template <uint OTHER>
[[kernel]] void groups(device float *y [[buffer(0)]], uint group [[threadgroup_position_in_grid]],
    uint i [[thread_index_in_threadgroup]]) {
    if (i == 0) {
        y[group] = y[group ^ OTHER] + 1.0f;
    }
}
template [[host_name("groups")]] [[kernel]] decltype(groups<0>) groups<0>;
template [[host_name("groups_race")]] [[kernel]] decltype(groups<1>) groups<1>;

// Threads that write adjacent bytes do not race.
[[kernel]] void bytes(device uchar *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    y[i] = uchar(i);
}

// All threads increment a counter; in the racing kernel, one also reads it non-atomically.
template <bool IS_PLAIN>
[[kernel]] void counts(device atomic_uint *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    atomic_fetch_add_explicit(y, 1u, memory_order_relaxed);
    if (IS_PLAIN && i == 5) {
        device uint *plain = (device uint *)y;
        plain[1] = plain[0];
    }
}
template [[host_name("counts")]] [[kernel]] decltype(counts<false>) counts<false>;
template [[host_name("counts_race")]] [[kernel]] decltype(counts<true>) counts<true>;

// The same, but one thread first sets the counter to 0, non-atomically.
template <bool WITH_BARRIER>
[[kernel]] void starts(device atomic_uint *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    if (i == 0) {
        *(device uint *)y = 0;
    }
    if (WITH_BARRIER) {
        threadgroup_barrier(mem_flags::mem_device);
    }
    atomic_fetch_add_explicit(y, 1u, memory_order_relaxed);
}
template [[host_name("starts")]] [[kernel]] decltype(starts<true>) starts<true>;
template [[host_name("starts_race")]] [[kernel]] decltype(starts<false>) starts<false>;

// One SIMD-group stores a tile and another loads it.
template <bool WITH_BARRIER>
[[kernel]] void tile(device float *y [[buffer(0)]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float shared[64];
    if (simd == 0) {
        simdgroup_store(make_filled_simdgroup_matrix<float, 8>(3.0f), &shared[0], 8);
    }
    if (WITH_BARRIER) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (simd == 1) {
        simdgroup_float8x8 m;
        simdgroup_load(m, &shared[0], 8);
        simdgroup_store(m, y, 8);
    }
}
template [[host_name("tile")]] [[kernel]] decltype(tile<true>) tile<true>;
template [[host_name("tile_race")]] [[kernel]] decltype(tile<false>) tile<false>;
