// The Metal Shading Language's standard library for clang on a CPU. Every translated source
// includes it first.
//
// It has two modes. Checked (-x clcpp): device, threadgroup and constant are OpenCL's __global,
// __local and __constant, so clang rejects a pointer into the wrong space. Erased (-x c++
// -std=c++17): they expand to nothing, for the few sources that C++ for OpenCL cannot express.
#pragma once
#include <metal_stdlib>

#ifdef __OPENCL_CPP_VERSION__
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable
#define SIM_CHECKED 1
#else
#define SIM_CHECKED 0
#define __global
#define __local
#define __generic
#define constant const
#endif
#pragma clang diagnostic ignored "-Wunused-function"

#include "library/types.h"
#include "library/thread.h"
#include "library/traits.h"
#include "library/construct.h"
#include "library/matrix.h"
#include "library/limits.h"
#include "library/math.h"
#include "library/integer.h"
#include "library/simd.h"
#include "library/simdgroup_matrix.h"
#include "library/atomic.h"
#include "library/bind.h"
