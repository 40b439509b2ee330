#include <metal_stdlib>
using namespace metal;

// Planted: a device pointer where a threadgroup pointer is asked for. Must not compile.
METAL_FUNC float first(threadgroup const float *p) { return p[0]; }

kernel void wrong_pointer_space(device float *y [[buffer(0)]]) {
    y[0] = first(y);
}
