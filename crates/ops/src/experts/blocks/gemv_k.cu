#include "experts/blocks/gemv.cuh"
LEGACY_AND_K_QUANTS(GEMV)
