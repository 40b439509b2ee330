// A bidirectional LSTM: i, f, g, o = x + W·h, c = σ(f)·c + σ(i)·tanh(g), h = σ(o)·tanh(c). All in f32,
// one rounding of each result.
//
// A block runs one direction of one sequence, token by token, with h in shared memory. A thread
// computes the four gates of a unit over a slice of h, and the first slice adds the others' sums.
// The weights are read from the L2 cache at every token: neighbours read neighbouring units.
#include "launch/cuda/prelude.cuh"

// Units side by side in the weight, gates, the largest hidden size, and threads of a block.
constexpr uint UNITS = 16, GATES = 4, MAX_HIDDEN = 1024, MAX_THREADS = 1024;

template <typename T>
__device__ void lstm(const T *x, const T *w, const uint *sequences, T *y, uint n, uint stride, uint units) {
    __shared__ float h[MAX_HIDDEN];
    __shared__ float part[GATES * MAX_THREADS];
    const uint start = sequences[2 * blockIdx.x], end = sequences[2 * blockIdx.x + 1], direction = blockIdx.y;
    const uint unit = threadIdx.x % units, slice = threadIdx.x / units, slices = blockDim.x / units;
    const uint panels = (n + UNITS - 1) / UNITS;
    w += (size_t(direction) * panels + unit / UNITS) * n * GATES * UNITS + unit % UNITS;
    const bool is_first = slice == 0 && unit < n;
    float c = 0.0f;
    if (is_first) h[unit] = 0.0f;
    __syncthreads();
    for (uint step = 0; step < end - start; step++) {
        const size_t token = direction == 0 ? start + step : end - 1 - step;
        float own[GATES], sums[GATES];
#pragma unroll
        for (uint gate = 0; gate < GATES; gate++) {
            sums[gate] = 0.0f;
            own[gate] = is_first ? wide(x[token * stride + (direction * GATES + gate) * n + unit]) : 0.0f;
        }
        if (unit < n) {
#pragma unroll 4
            for (uint k = slice; k < n; k += slices) {
                const T *row = w + size_t(k) * GATES * UNITS;
#pragma unroll
                for (uint gate = 0; gate < GATES; gate++) sums[gate] = fmaf(h[k], wide(row[gate * UNITS]), sums[gate]);
            }
        }
#pragma unroll
        for (uint gate = 0; gate < GATES; gate++) part[(slice * GATES + gate) * units + unit] = sums[gate];
        __syncthreads(); // all parts are written, and h has been read
        if (is_first) {
#pragma unroll
            for (uint gate = 0; gate < GATES; gate++) {
                for (uint other = 1; other < slices; other++) sums[gate] += part[(other * GATES + gate) * units + unit];
                sums[gate] += own[gate];
            }
            c = fmaf(sigmoid_of(sums[1]), c, sigmoid_of(sums[0]) * tanhf(sums[2]));
            const float result = sigmoid_of(sums[3]) * tanhf(c);
            h[unit] = result;
            y[token * 2 * n + direction * n + unit] = narrow<T>(result);
        }
        __syncthreads(); // h is written, and the parts have been read
    }
}

#define LSTM(NAME, T) \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) lstm_##NAME(const T *x, const T *w, const uint *sequences, T *y, \
        uint n, uint stride, uint units) { \
        grid_dependency_sync(); \
        lstm<T>(x, w, sequences, y, n, stride, units); \
    }
FORMATS(LSTM)
