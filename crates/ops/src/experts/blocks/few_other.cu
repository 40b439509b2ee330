#include "experts/blocks/few.cuh"
OTHER_FORMATS(FEW)
