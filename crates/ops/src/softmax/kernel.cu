// y = exp(x - max(x)) / sum(exp(x - max(x))) over a row: in f32, one rounding.
//
// Elements beyond the row are -INFINITY: they never are the maximum, and add nothing to the sum.
#include "launch/cuda/rows.cuh"

template <typename T, int N> struct Scores {
    float of[N];

    __device__ __forceinline__ Scores() {
#pragma unroll
        for (int j = 0; j < N; j++) of[j] = -INFINITY;
    }
    __device__ __forceinline__ Scores(const T *x) {
        const Run<T, N> run = load<T, N>(x);
#pragma unroll
        for (int j = 0; j < N; j++) of[j] = wide(run.of[j]);
    }
    __device__ __forceinline__ float most() const {
        float most = of[0];
#pragma unroll
        for (int j = 1; j < N; j++) most = larger(most, of[j]);
        return most;
    }
    // Replaces the scores by exp(x - most) and returns their sum.
    __device__ __forceinline__ float raised(float most) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < N; j++) sum += of[j] = expf(of[j] - most);
        return sum;
    }
    __device__ __forceinline__ Run<T, N> shares(float sum) const {
        Run<T, N> out;
#pragma unroll
        for (int j = 0; j < N; j++) out.of[j] = narrow<T>(of[j] / sum);
        return out;
    }
};

template <typename T, int N, int RUNS, bool IS_WARP>
__device__ void softmax(const T *x, T *y, uint rows, uint n, uint stride) {
    const Team<IS_WARP> team;
    if (team.row >= rows) return;
    x += size_t(team.row) * stride;
    y += size_t(team.row) * n;
    Scores<T, N> held[RUNS];
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint i = (r * team.size + team.me) * N;
        if (i < n) held[r] = Scores<T, N>(x + i);
    }
    float most = held[0].most();
#pragma unroll
    for (int r = 1; r < RUNS; r++) most = larger(most, held[r].most());
    const uint behind = (RUNS * team.size + team.me) * N, step = team.size * N;
    for (uint i = behind; i < n; i += step) most = larger(most, Scores<T, N>(x + i).most());
    most = team.max(most);
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < RUNS; r++) sum += held[r].raised(most);
    for (uint i = behind; i < n; i += step) sum += Scores<T, N>(x + i).raised(most);
    sum = team.sum(sum);
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint i = (r * team.size + team.me) * N;
        if (i < n) put<T, N>(y + i, held[r].shares(sum));
    }
    for (uint i = behind; i < n; i += step) {
        Scores<T, N> again(x + i);
        again.raised(most);
        put<T, N>(y + i, again.shares(sum));
    }
}

#define SOFTMAX(NAME, T, KIND, N, RUNS, IS_WARP, THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS) softmax_##KIND##_##NAME(const T *x, T *y, uint rows, uint n, uint stride) { \
        grid_dependency_sync(); \
        softmax<T, N, RUNS, IS_WARP>(x, y, rows, n, stride); \
    }
#define KINDS(NAME, T) ROWS(SOFTMAX, NAME, T)
FORMATS(KINDS)
