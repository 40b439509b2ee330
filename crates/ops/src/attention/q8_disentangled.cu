// Tensor core kernels for disentangled positions, and for Q8 keys and values: see tiles.cuh.
#include "attention/tiles.cuh"

#define DISENTANGLED_SIZE(NAME, T, D) KERNEL(NAME, T, D, disentangled, false, 4, DISENTANGLED)
#define Q8_SIZE(NAME, T, D) \
    KERNEL(NAME, T, D, decode_q8, true, 4, Q8) \
    KERNEL(NAME, T, D, tile64_q8, false, 4, Q8)
#define ATTENTION(NAME, T) \
    DISENTANGLED_SIZE(NAME, T, 32) \
    DISENTANGLED_SIZE(NAME, T, 64) \
    Q8_SIZE(NAME, T, 32) \
    Q8_SIZE(NAME, T, 64) \
    Q8_SIZE(NAME, T, 96) \
    Q8_SIZE(NAME, T, 128)
ATTENTION(f16, half_t)
ATTENTION(bf16, bhalf_t)
