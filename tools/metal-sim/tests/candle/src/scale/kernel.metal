#include <metal_stdlib>
using namespace metal;

// y = factor * x
kernel void scale_f32(
    constant uint &length [[buffer(0)]],
    constant float &factor [[buffer(1)]],
    device const float *x [[buffer(2)]],
    device float *y [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
    if (i >= length) { return; }
    y[i] = factor * x[i];
}
