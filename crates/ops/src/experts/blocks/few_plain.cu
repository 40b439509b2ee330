#include "experts/blocks/few.cuh"
PLAIN_FORMATS(FEW)
