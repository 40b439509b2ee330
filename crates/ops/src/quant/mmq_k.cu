#include "quant/mmq.cuh"
LEGACY_AND_K_QUANTS(MMQ_TILES)
