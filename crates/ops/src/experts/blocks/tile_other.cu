#include "experts/blocks/tile.cuh"
OTHER_FORMATS(TILES)
