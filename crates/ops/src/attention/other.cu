// Tensor core kernels for disentangled positions, and for Q8 keys and values: see tiles.cuh.
#include "attention/tiles.cuh"

#define PLACED_SIZE(NAME, T, D) KERNEL(NAME, T, D, placed, false, 4, PLACED)
#define CODED_SIZE(NAME, T, D) \
    KERNEL(NAME, T, D, few_coded, true, 4, CODED) \
    KERNEL(NAME, T, D, many_coded, false, 4, CODED)
#define ATTENTION(NAME, T) \
    PLACED_SIZE(NAME, T, 32) \
    PLACED_SIZE(NAME, T, 64) \
    CODED_SIZE(NAME, T, 32) \
    CODED_SIZE(NAME, T, 64) \
    CODED_SIZE(NAME, T, 96) \
    CODED_SIZE(NAME, T, 128)
ATTENTION(f16, half_t)
ATTENTION(bf16, bhalf_t)
