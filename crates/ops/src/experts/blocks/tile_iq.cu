#include "experts/blocks/tile.cuh"
I_QUANTS_AND_OTHERS(TILES)
