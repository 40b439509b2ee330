#include <metal_stdlib>
using namespace metal;

// A threadgroup variable is passed as a reference to a thread variable. Must not compile.
METAL_FUNC void increment(thread float &x) { x += 1.0f; }

kernel void wrong_thread_space(device float *y [[buffer(0)]]) {
    threadgroup float shared[1];
    increment(shared[0]);
    y[0] = shared[0];
}
