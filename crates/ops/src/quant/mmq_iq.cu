#include "quant/mmq.cuh"
I_QUANTS_AND_OTHERS(MMQ_TILES)
