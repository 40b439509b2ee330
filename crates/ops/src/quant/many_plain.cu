#include "quant/many.cuh"
PLAIN_FORMATS(EVERY_MANY)
