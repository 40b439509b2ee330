#include "quant/mmvq.cuh"
LEGACY_AND_K_QUANTS(MMVQ_SIZES)
