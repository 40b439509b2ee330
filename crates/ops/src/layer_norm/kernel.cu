// y = (s - mean(s)) / sqrt(var(s) + eps) * w + b,  s = x + residual. One block a row, everything in f32, one rounding.
//
// The work is two reads and one write of the row, so memory is the limit: neighbouring threads read neighbouring elements,
// and the second and third look at the row find it in the first-level cache.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ inline float wide(float v) { return v; }
__device__ inline float wide(__half v) { return __half2float(v); }
__device__ inline float wide(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T> __device__ inline T narrow(float v);
template <> __device__ inline float narrow<float>(float v) { return v; }
template <> __device__ inline __half narrow<__half>(float v) { return __float2half_rn(v); }
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

// The sum over the block, in every thread. blockDim.x is a multiple of 32, at most 1024.
__device__ float block_sum(float v) {
    __shared__ float part[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    __syncthreads();  // an earlier call's parts have been read
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = lane < warps ? part[lane] : 0.0f;
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// residual and bias may be null.
template <typename T>
__device__ void layer_norm(const T *x, const T *residual, const T *w, const T *bias, T *y, unsigned n, float eps) {
    const size_t row = static_cast<size_t>(blockIdx.x) * n;
    auto sum_at = [&](unsigned i) { return wide(x[row + i]) + (residual ? wide(residual[row + i]) : 0.0f); };

    float sum = 0.0f;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) sum += sum_at(i);
    const float mean = block_sum(sum) / n;

    float squares = 0.0f;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        const float d = sum_at(i) - mean;
        squares += d * d;
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / n + eps);

    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        const float normal = (sum_at(i) - mean) * scale;
        y[row + i] = narrow<T>(normal * wide(w[i]) + (bias ? wide(bias[i]) : 0.0f));
    }
}

#define LAYER_NORM(NAME, T)                                                                                        \
    extern "C" __global__ void NAME(const T *x, const T *residual, const T *w, const T *bias, T *y, unsigned n, float eps) { \
        layer_norm<T>(x, residual, w, bias, y, n, eps);                                                            \
    }
LAYER_NORM(layer_norm_f32, float)
LAYER_NORM(layer_norm_f16, __half)
LAYER_NORM(layer_norm_bf16, __nv_bfloat16)
