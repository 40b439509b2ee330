// What a kernel's thread asks of the runtime. Mirrors ../../runtime/abi.h.
#pragma once

struct __sim_thread {
  ulong buffers[31];
  ulong threadgroup_memory[31];
  uint3 thread_position_in_grid, thread_position_in_threadgroup, threadgroup_position_in_grid;
  uint3 threads_per_threadgroup, threadgroups_per_grid, threads_per_grid;
  uint thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
  uint simdgroups_per_threadgroup, threads_per_simdgroup;
};

extern "C" {
void __sim_barrier(uint flags);
void __sim_simd_barrier(uint flags);
// Every active lane of the SIMD-group gives `mine` and gets all of them: `all` holds 32 * size bytes. Returns the mask
// of active lanes.
uint __sim_simd_exchange(const void *mine, uint size, void *all);
ulong __sim_threadgroup_alloc(const void *key, ulong size, ulong align);
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
