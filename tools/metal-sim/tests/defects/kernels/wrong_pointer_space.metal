#include <metal_stdlib>
using namespace metal;

// A device pointer is passed as a threadgroup pointer. Must not compile.
METAL_FUNC float first(threadgroup const float *p) { return p[0]; }

kernel void wrong_pointer_space(device float *y [[buffer(0)]]) {
    y[0] = first(y);
}
