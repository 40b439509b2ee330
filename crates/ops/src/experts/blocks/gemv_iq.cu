#include "experts/blocks/gemv.cuh"
I_QUANTS_AND_OTHERS(GEMV)
