// y = act(gate) * value, where gate and value are the two halves of a row, times the row's scale if
// there are scales: in f32, one rounding. Without a gate, y = act(x). A thread computes a run. A row
// has one block or several, so that no thread divides to find its position.
#include "launch/cuda/prelude.cuh"

template <typename T, int N, uint KIND>
__device__ __forceinline__ void gated(const T *gate, const T *value, float scale, T *y) {
    const Run<T, N> a = load<T, N>(gate);
    // Without values, the gate stands for them, and its product is not used.
    const Run<T, N> b = load<T, N>(value ? value : gate);
    Run<T, N> out;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float active = activate(wide(a.of[j]), KIND);
        out.of[j] = narrow<T>((value ? active * wide(b.of[j]) : active) * scale);
    }
    put<T, N>(y, out);
}

template <typename T, int N>
__device__ void glu(const T *x, const T *scales, T *y, uint n, uint stride, uint activation, uint halves) {
    const uint i = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (i >= n) return;
    x += size_t(blockIdx.x) * stride + i;
    y += size_t(blockIdx.x) * n + i;
    // 0: one gate as wide as x; 1: the first half; 2: the second half.
    const T *gate = halves == 2 ? x + n : x, *value = halves == 0 ? nullptr : halves == 2 ? x : x + n;
    const float scale = scales ? wide(scales[blockIdx.x]) : 1.0f;
    switch (activation) {
        case GELU: return gated<T, N, GELU>(gate, value, scale, y);
        case GELU_TANH: return gated<T, N, GELU_TANH>(gate, value, scale, y);
        case QUICK_GELU: return gated<T, N, QUICK_GELU>(gate, value, scale, y);
        case RELU: return gated<T, N, RELU>(gate, value, scale, y);
        case SILU: return gated<T, N, SILU>(gate, value, scale, y);
        case SIGMOID: return gated<T, N, SIGMOID>(gate, value, scale, y);
        case TANH: return gated<T, N, TANH>(gate, value, scale, y);
        default: return gated<T, N, NONE>(gate, value, scale, y);
    }
}

#define KIND(NAME, T, N, RUNS) \
    extern "C" __global__ void __launch_bounds__(128) glu_##RUNS##_##NAME(const T *x, const T *scales, T *y, uint n, uint stride, \
        uint activation, uint halves) { \
        grid_dependency_sync(); \
        glu<T, N>(x, scales, y, n, stride, activation, halves); \
    }
#define GLU(NAME, T) KIND(NAME, T, SIXTEEN<T>, aligned) KIND(NAME, T, 1, unaligned)
FORMATS(GLU)
