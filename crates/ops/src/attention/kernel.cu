// Tensor core kernels for keys and values in the format of q: see tiles.cuh.
#include "attention/tiles.cuh"

#define SIZE(NAME, T, D) \
    KERNEL(NAME, T, D, decode, true, 4, FLOATS) \
    KERNEL(NAME, T, D, tile64, false, 4, FLOATS)
#define ENCODERS(NAME, T, D) KERNEL(NAME, T, D, encoder, false, 4, ENCODER)
#define LARGE(NAME, T, D) KERNEL(NAME, T, D, tile128, false, 8, FLOATS)
#define ATTENTION(NAME, T) \
    SIZE(NAME, T, 32) \
    SIZE(NAME, T, 64) \
    SIZE(NAME, T, 96) \
    SIZE(NAME, T, 128) \
    SIZE(NAME, T, 256) \
    ENCODERS(NAME, T, 32) \
    ENCODERS(NAME, T, 64) \
    LARGE(NAME, T, 96) \
    LARGE(NAME, T, 128)
ATTENTION(f16, half_t)
ATTENTION(bf16, bhalf_t)
