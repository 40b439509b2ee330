#include "quant/mmvq.cuh"
I_QUANTS_AND_OTHERS(MMVQ_SIZES)
