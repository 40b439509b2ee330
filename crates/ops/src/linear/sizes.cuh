// What every product is told, in the order of Rust: rows and columns of what it makes and how deep it is, elements from one row of x
// and of the residual to the next, and that y's rows are `width` long, of which these columns begin at `first`.
#pragma once
#include "launch/cuda/prelude.cuh"

struct Sizes {
    uint rows, n, k, x_step, residual_step, width, first;
};
#define SIZES uint rows, uint n, uint k, uint x_step, uint residual_step, uint width, uint first, uint activation
#define GIVEN Sizes{rows, n, k, x_step, residual_step, width, first}
