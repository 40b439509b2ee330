// The runtime's functions for the threads of a kernel. Mirrors ../../runtime/abi.h.
#pragma once

struct __sim_thread {
  ulong buffers[31];
  ulong threadgroup_memory[31];
  uint3 thread_position_in_grid, thread_position_in_threadgroup, threadgroup_position_in_grid;
  uint3 threads_per_threadgroup, threadgroups_per_grid, threads_per_grid;
  uint thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
  uint simdgroups_per_threadgroup, threads_per_simdgroup;
};

// The values that the lanes of a SIMD-group exchange: see runtime/abi.h.
struct __sim_exchange {
  uint mask;
  uint has_result;
  char __attribute__((aligned(64))) result[256];
  char __attribute__((aligned(64))) values[32 * 32];
};

extern "C" {
void __sim_barrier(uint flags);
void __sim_simd_barrier(uint flags);
// Every active lane of the SIMD-group passes `mine`, of at most 32 bytes. The result holds the
// values of all lanes, and is valid until the lane calls the runtime again.
__sim_exchange *__sim_simd_exchange(const void *mine, uint size);
ulong __sim_threadgroup_alloc(const void *key, ulong size, ulong name);
uint __sim_lane();
ulong __sim_absent();

float expf(float);
float exp2f(float);
float exp10f(float);
float logf(float);
float log2f(float);
float log10f(float);
float sinf(float);
float cosf(float);
float tanf(float);
float asinf(float);
float acosf(float);
float atanf(float);
float atan2f(float, float);
float sinhf(float);
float coshf(float);
float tanhf(float);
float asinhf(float);
float acoshf(float);
float atanhf(float);
float powf(float, float);
float fmodf(float, float);
float ldexpf(float, int);
}
