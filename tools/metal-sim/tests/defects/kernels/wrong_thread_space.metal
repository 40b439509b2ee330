#include <metal_stdlib>
using namespace metal;

// Planted: a threadgroup variable where a reference to the thread's own is asked for. Must not compile.
METAL_FUNC void increment(thread float &x) { x += 1.0f; }

kernel void wrong_thread_space(device float *y [[buffer(0)]]) {
    threadgroup float shared[1];
    increment(shared[0]);
    y[0] = shared[0];
}
