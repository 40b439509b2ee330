#include "quant/few.cuh"
OTHER_FORMATS(EVERY_FEW)
