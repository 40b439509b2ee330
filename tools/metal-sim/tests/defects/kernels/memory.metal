#include <metal_stdlib>
using namespace metal;

// Invalid reads and writes. All kernels run with one threadgroup of 32 threads on buffers of 32
// elements.
constant bool HAS_X [[function_constant(0)]];

template <int SHIFT>
[[kernel]] void reads(device float *y [[buffer(0)]], device const float *x [[buffer(1)]],
    uint i [[thread_index_in_threadgroup]]) {
    y[i] = x[int(i) + SHIFT];
}
template [[host_name("reads")]] [[kernel]] decltype(reads<0>) reads<0>;
template [[host_name("reads_one_past")]] [[kernel]] decltype(reads<1>) reads<1>;
template [[host_name("reads_one_before")]] [[kernel]] decltype(reads<-1>) reads<-1>;

[[kernel]] void reads_first(device float *y [[buffer(0)]], device const float *x [[buffer(1)]],
    uint i [[thread_index_in_threadgroup]]) {
    y[i] = x[0];
}

template <int SHIFT>
[[kernel]] void writes(device half *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    y[int(i) + SHIFT] = half(1.0f);
}
template [[host_name("writes_one_past")]] [[kernel]] decltype(writes<1>) writes<1>;

// Reads four elements at a time, past the end of a buffer of 30.
[[kernel]] void reads_vector_past(device float4 *y [[buffer(0)]], device const float4 *x [[buffer(1)]],
    uint i [[thread_index_in_threadgroup]]) {
    if (i < 8) {
        y[i] = x[i];
    }
}

// Reads four elements at once at an address that is aligned for one.
[[kernel]] void reads_vector_astray(device float *y [[buffer(0)]], device const float *x [[buffer(1)]],
    uint i [[thread_index_in_threadgroup]]) {
    float4 v = *(device const float4 *)(x + 1);
    y[i] = v.x;
}

template <int SHIFT>
[[kernel]] void shares(device float *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float before[32];
    threadgroup float shared[32];
    before[i] = 0.0f;
    shared[i] = 1.0f;
    y[i] = shared[int(i) + SHIFT];
}
template [[host_name("shares")]] [[kernel]] decltype(shares<0>) shares<0>;
template [[host_name("shares_one_past")]] [[kernel]] decltype(shares<1>) shares<1>;
template [[host_name("shares_one_before")]] [[kernel]] decltype(shares<-1>) shares<-1>;

[[kernel]] void reads_absent(device float *y [[buffer(0)]],
    device const float *x [[buffer(1), function_constant(HAS_X)]], uint i [[thread_index_in_threadgroup]]) {
    y[i] = x[i];
}
[[kernel]] void reads_unbound(device float *y [[buffer(0)]], device const float *x [[buffer(5)]],
    uint i [[thread_index_in_threadgroup]]) {
    y[i] = x[i];
}

// Reads of unwritten memory: the last element of threadgroup memory, an element that is added to,
// halves and bytes.
template <uint WRITTEN>
[[kernel]] void fills(device float *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float shared[32];
    if (i < WRITTEN) {
        shared[i] = 1.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = shared[31 - i];
}
template [[host_name("fills")]] [[kernel]] decltype(fills<32>) fills<32>;
template [[host_name("fills_too_few")]] [[kernel]] decltype(fills<31>) fills<31>;

template <typename T>
[[kernel]] void adds(device T *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    y[i] = T(float(y[i]) + 1.0f);
}
template [[host_name("adds_f32")]] [[kernel]] decltype(adds<float>) adds<float>;
template [[host_name("adds_f16")]] [[kernel]] decltype(adds<half>) adds<half>;
template [[host_name("adds_u8")]] [[kernel]] decltype(adds<uchar>) adds<uchar>;
[[kernel]] void sets(device float *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    y[i] = 0.0f;
}
