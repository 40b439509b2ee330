#include <metal_stdlib>
using namespace metal;

// The correct twin of the sources that must not compile.
METAL_FUNC float first(threadgroup const float *p) { return p[0]; }
METAL_FUNC void increment(thread float &x) { x += 1.0f; }

kernel void right_spaces(device float *y [[buffer(0)]]) {
    threadgroup float shared[1];
    shared[0] = y[0];
    float x = first(shared);
    increment(x);
    y[0] = x;
}
