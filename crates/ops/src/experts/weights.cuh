// The experts' matrices, each a tensor of its own: their addresses are a kernel's last parameter,
// so that nothing is uploaded for a call and a CUDA graph holds them.
#pragma once
#include "launch/cuda/runs.cuh"

// As in Rust.
constexpr uint MAX_EXPERTS = 512;
constexpr uint MAX_TOP_K = 32;

template <typename T, uint CAPACITY> struct Weights {
    const T *of[CAPACITY];
};

// Last parameters for quantized weights: the codebook, bytes of a row, the format of the
// activations (0 for f32, 1 for f16, 2 for bf16), whether their rows begin at multiples of 16
// bytes, and the matrices.
#define IN_BLOCKS \
    const uint16_t *grid, uint bytes, uint dtype, uint in_runs, const __grid_constant__ Weights<uint8_t, MAX_EXPERTS> weights
