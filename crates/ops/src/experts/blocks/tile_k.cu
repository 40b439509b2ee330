#include "experts/blocks/tile.cuh"
LEGACY_AND_K_QUANTS(TILES)
