#include "quant/few.cuh"
PLAIN_FORMATS(EVERY_FEW)
