#include "experts/blocks/tile.cuh"
PLAIN_FORMATS(TILES)
