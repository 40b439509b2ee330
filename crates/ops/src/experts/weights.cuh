// The matrices of the experts, which are tensors of their own: their addresses are a kernel's last parameter, so that nothing is uploaded
// for a call and a graph of calls holds them.
#pragma once
#include "launch/cuda/runs.cuh"

// As in Rust.
constexpr uint MOST_EXPERTS = 512;
constexpr uint MOST_CHOSEN = 32;

template <typename T, uint ROOM> struct Weights {
    const T *of[ROOM];
};
