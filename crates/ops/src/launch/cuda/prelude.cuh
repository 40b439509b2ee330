// Included by every kernel file: number formats, sums over a warp and a block, activations, and
// loads and stores.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

using half_t = __half;
using bhalf_t = __nv_bfloat16;
using uint = unsigned;

constexpr uint LANES = 32;
constexpr uint ALL_LANES = 0xffffffffu;

// Every thread of every kernel calls this before it touches global memory. Our kernels are launched
// (`Call::run`) so that on Hopper and newer a grid may begin when every block of the grid before
// has ended or has allowed it (programmatic dependent launch, PDL): blocks are scheduled while
// earlier writes are still in flight. There is no deadlock, because the grid that is waited for is
// already resident. There are no races either: no thread touches global memory, or returns, before
// the whole grid before has ended and all its writes are visible. So when a grid has ended, all
// grids before it have ended too, including those that read memory which is now overwritten: to
// wait for the last grid is to wait for all. Work that is not ours (cuBLASLt's kernels, Candle's,
// copies) runs after everything before it, and we wait for it.
__device__ __forceinline__ void grid_dependency_sync() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next grid begin. Only for kernels whose blocks have a multiprocessor each. After other
// kernels, the next grid's blocks would be placed wherever there is space at that moment, several
// on one multiprocessor and none on another, which made decoding of Llama a tenth slower.
__device__ __forceinline__ void trigger_dependent_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Computations are in f32 and rounded once.
__device__ __forceinline__ float wide(float v) { return v; }
__device__ __forceinline__ float wide(half_t v) { return __half2float(v); }
__device__ __forceinline__ float wide(bhalf_t v) { return __bfloat162float(v); }
template <typename T> __device__ __forceinline__ T narrow(float v);
template <> __device__ __forceinline__ float narrow<float>(float v) { return v; }
template <> __device__ __forceinline__ half_t narrow<half_t>(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ bhalf_t narrow<bhalf_t>(float v) { return __float2bfloat16_rn(v); }

// N adjacent elements, aligned so that they can be read at once: at most 16 bytes.
template <typename T, int N> struct alignas(sizeof(T) * N) Run {
    T of[N];
};
// Elements in 16 bytes.
template <typename T> constexpr int SIXTEEN = 16 / sizeof(T);

template <typename T, int N> __device__ __forceinline__ Run<T, N> load(const T *x) {
    return *reinterpret_cast<const Run<T, N> *>(x);
}
// Loads data that is read once, without evicting other data from the cache.
template <typename T> __device__ __forceinline__ Run<T, SIXTEEN<T>> load_once(const T *x) {
    uint4 bits = __ldcs(reinterpret_cast<const uint4 *>(x));
    return *reinterpret_cast<Run<T, SIXTEEN<T>> *>(&bits);
}
template <typename T, int N> __device__ __forceinline__ void put(T *y, const Run<T, N> &run) {
    *reinterpret_cast<Run<T, N> *>(y) = run;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(ALL_LANES, v, step);
    return v;
}

// The larger, or NaN if either is NaN.
__device__ __forceinline__ float larger(float a, float b) { return a > b || isnan(a) ? a : b; }
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v = larger(v, __shfl_xor_sync(ALL_LANES, v, step));
    return v;
}

// The sum over the block, in every thread. The block consists of whole warps. `part` is shared
// memory with one float per warp.
__device__ __forceinline__ float block_sum(float v, float *part) {
    const uint lane = threadIdx.x % LANES, warps = blockDim.x / LANES;
    v = warp_sum(v);
    __syncthreads(); // the parts of an earlier call have been read
    if (lane == 0) part[threadIdx.x / LANES] = v;
    __syncthreads();
    return warp_sum(lane < warps ? part[lane] : 0.0f);
}
__device__ __forceinline__ float block_max(float v, float *part) {
    const uint lane = threadIdx.x % LANES, warps = blockDim.x / LANES;
    v = warp_max(v);
    __syncthreads();
    if (lane == 0) part[threadIdx.x / LANES] = v;
    __syncthreads();
    return warp_max(lane < warps ? part[lane] : -INFINITY);
}

// The activations, numbered as `Activation` in Rust.
enum Activation : uint { NONE, GELU, GELU_TANH, QUICK_GELU, RELU, SILU, SIGMOID, TANH };

__device__ __forceinline__ float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ float activate(float x, uint kind) {
    switch (kind) {
        case GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
        case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.7978846f * fmaf(x * x * x, 0.044715f, x)));
        case QUICK_GELU: return x * sigmoid_of(1.702f * x);
        case RELU: return x < 0.0f ? 0.0f : x;
        case SILU: return x * sigmoid_of(x);
        case SIGMOID: return sigmoid_of(x);
        case TANH: return tanhf(x);
        default: return x;
    }
}

// GELU for results in f16 and bf16, in a third of erff's instructions: max(x, 0) - |x| · Φ(-|x|),
// where Φ's tail is 2 to the power of a polynomial, fitted to the least relative error of the
// product down to the smallest normal number of f16. There it is within 2⁻¹⁷, a thirtieth of half a
// rounding of f16, and within 1e-6 everywhere. Beyond 6 the tail is zero in both formats.
__device__ __forceinline__ float gelu_half(float x) {
    const float a = fminf(fabsf(x), 6.0f);
    float p = fmaf(3.2424975e-5f, a, -7.4816766e-4f);
    p = fmaf(p, a, 7.9410565e-3f);
    p = fmaf(p, a, -5.3049130e-2f);
    p = fmaf(p, a, -4.5917316e-1f);
    p = fmaf(p, a, -1.1510356f);
    p = fmaf(p, a, -1.0000077f);
    float e, positive;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(p));
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(positive) : "f"(x), "f"(0.0f));
    return fmaf(-a, e, positive);
}

// KERNEL(name, T) for each format of the activations.
#define FORMATS(KERNEL) KERNEL(f32, float) KERNEL(f16, half_t) KERNEL(bf16, bhalf_t)
