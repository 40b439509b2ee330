// Tensor core kernels for keys and values in the format of q: see tiles.cuh.
#include "attention/tiles.cuh"

#define SIZE(NAME, T, D) \
    KERNEL(NAME, T, D, few, true, 4, FLOATS) \
    KERNEL(NAME, T, D, many, false, 4, FLOATS)
#define SHORT(NAME, T, D) KERNEL(NAME, T, D, straight, false, 4, STRAIGHT)
#define WIDE(NAME, T, D) KERNEL(NAME, T, D, wide, false, 8, FLOATS)
#define ATTENTION(NAME, T) \
    SIZE(NAME, T, 32) \
    SIZE(NAME, T, 64) \
    SIZE(NAME, T, 96) \
    SIZE(NAME, T, 128) \
    SIZE(NAME, T, 256) \
    SHORT(NAME, T, 32) \
    SHORT(NAME, T, 64) \
    WIDE(NAME, T, 96) \
    WIDE(NAME, T, 128)
ATTENTION(f16, half_t)
ATTENTION(bf16, bhalf_t)
