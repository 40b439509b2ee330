#include "quant/many.cuh"
OTHER_FORMATS(EVERY_MANY)
