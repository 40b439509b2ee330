// Rotary position embedding: y1 = x1·cos - x2·sin, y2 = x2·cos + x1·sin for elements half the
// rotated part apart, in f32 with one rounding. Elements after the rotated part are copied.
//
// A thread has N neighbours of the first half and their partners, or N that are copied, so that
// each element is read once, 16 bytes at a time. Where heads or halves are not whole runs, N is 1.
#include "rotary/rotate.cuh"

struct Heads {
    uint heads, size;
    // Elements from one token of x to the next, and from one head to the next.
    uint token, head;
    // Rotated pairs of a head, and positions; a position beyond them, which callers must not send,
    // counts as the last.
    uint pairs, positions;
};

template <typename T, int N>
__device__ void rotary(const T *x, const uint *positions, const float *cosines, const float *sines, T *y, Heads p) {
    const uint token = blockIdx.x, turning = p.pairs / N, threads = turning + (p.size - 2 * p.pairs) / N;
    const uint at = blockIdx.y * blockDim.x + threadIdx.x, head = at / threads, share = at % threads;
    if (head >= p.heads) return;
    x += size_t(token) * p.token + size_t(head) * p.head;
    y += (size_t(token) * p.heads + head) * p.size;
    if (share >= turning) {
        const uint i = 2 * p.pairs + (share - turning) * N;
        put<T, N>(y + i, load<T, N>(x + i));
        return;
    }
    const uint i = share * N;
    const size_t row = size_t(min(positions[token], p.positions - 1)) * p.pairs;
    float a[N], b[N], c[N], s[N];
    read<T, N>(a, x + i);
    read<T, N>(b, x + p.pairs + i);
    read<float, N>(c, cosines + row + i);
    read<float, N>(s, sines + row + i);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float first = rotated_first(a[j], b[j], c[j], s[j]);
        b[j] = rotated_second(a[j], b[j], c[j], s[j]);
        a[j] = first;
    }
    write<T, N>(y + i, a);
    write<T, N>(y + p.pairs + i, b);
}

#define ONE(NAME, T, N, KIND) \
    extern "C" __global__ void rotary_##KIND##_##NAME(const T *x, const uint *positions, const float *cosines, const float *sines, \
        T *y, uint heads, uint size, uint token, uint head, uint pairs, uint table) { \
        grid_dependency_sync(); \
        rotary<T, N>(x, positions, cosines, sines, y, Heads{heads, size, token, head, pairs, table}); \
    }
#define ROTARY(NAME, T) ONE(NAME, T, SIXTEEN<T>, aligned) ONE(NAME, T, 1, unaligned)
FORMATS(ROTARY)
