// Sizes that every product kernel gets, in the order of the Rust code: rows and columns of the
// result and the depth, elements from row to row of x and of the residual, the width of y's rows,
// and the first column of this part in them.
#pragma once
#include "launch/cuda/prelude.cuh"

struct Sizes {
    uint rows, n, k, x_step, residual_step, width, first;
};
#define SIZES uint rows, uint n, uint k, uint x_step, uint residual_step, uint width, uint first, uint activation
#define ARGS Sizes{rows, n, k, x_step, residual_step, width, first}
