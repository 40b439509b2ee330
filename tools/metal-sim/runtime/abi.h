// The ABI of the runtime: for compiled kernels (stdlib/library/thread.h and the translator's tables
// mirror the structs), and for the callers that dispatch them (the simulated device, the tests).
#pragma once
#include <cstddef>
#include <cstdint>

typedef uint32_t sim_uint3 __attribute__((ext_vector_type(3)));

// Everything that a kernel's thread can query, under Metal's names.
struct sim_thread {
  uint64_t buffers[31];
  uint64_t threadgroup_memory[31];
  sim_uint3 thread_position_in_grid, thread_position_in_threadgroup, threadgroup_position_in_grid;
  sim_uint3 threads_per_threadgroup, threadgroups_per_grid, threads_per_grid;
  uint32_t thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
  uint32_t simdgroups_per_threadgroup, threads_per_simdgroup;
};
// The exchange of values in a SIMD-group. `values` has the value of every participating lane, in order
// of lanes. The first lane that needs a result computed from all values stores it in `result`.
struct sim_exchange {
  uint32_t mask; // of the participating lanes
  uint32_t has_result;
  alignas(64) char result[256];
  alignas(64) char values[32 * 32];
};
constexpr uint32_t SIM_EXCHANGE_SIZE = 32; // most bytes per lane

struct sim_kernel {
  const char *name;
  void (*run)(const sim_thread *);
};
struct sim_constant {
  int id;
  const char *name;
  void (*set)(const void *value, unsigned size);
};

// A bound buffer: the kernel gets data + offset. `shadow` is the shadow memory of the checked mode; a
// buffer without it cannot be written (setBytes).
struct sim_buffer {
  char *data;
  size_t length, offset;
  void *shadow;
  int is_fresh; // created without contents: bytes that are still poison were never written
};

// Bytes of buffers that the threads of a checked dispatch accessed, and the number of distinct ones.
// Without setBytes.
struct sim_traffic {
  uint64_t read, written, read_once, written_once;
};

// A grid and its threadgroups. `grid` counts threads if `grid_is_threads` (dispatchThreads), else
// threadgroups.
struct sim_launch {
  uint32_t grid[3];
  uint32_t threadgroup[3];
  int grid_is_threads;
  const sim_buffer *buffers;
  int buffer_count;
  const uint32_t *threadgroup_memory; // lengths in bytes
  int threadgroup_memory_count;
  // The clock of the checker, common to all libraries that share buffers; null if none are shared.
  uint32_t *clock;
  // The clock at the last barrier between commands: later commands may run concurrently with this one.
  // 0: it runs alone.
  uint32_t ordered_until;
  sim_traffic *traffic; // may be null
};

constexpr size_t SIM_THREADGROUP_MEMORY = 32768;
constexpr uint32_t SIM_THREADS_PER_THREADGROUP = 1024;

#pragma GCC visibility push(default) // all other symbols are private to their library
extern "C" {
// Returns 0, or a code of the error that sim_error() describes.
int sim_dispatch(const char *kernel, const sim_launch *);
const char *sim_error();
// The warnings since sim_clear(): one line per kind and kernel, beginning with the kernel's name.
const char *sim_warnings();
void sim_clear();
// The order in which threadgroups run and, between barriers, SIMD-groups and lanes: 0 forward, 1
// backward, 2 shuffled by the seed, 3 interleaved (SIMD-groups switch at every SIMD operation, and odd
// lanes run first).
void sim_thread_order(int order, uint64_t seed);
// Number of constants of the library with this id.
int sim_set_constant(int id, const void *value, unsigned size);
int sim_kernel_count();
const char *sim_kernel_name(int);
// Position in the grid of the running thread; false outside of a dispatch.
bool sim_running_thread(uint32_t position[3]);
// Allocates memory that traps past its end, filled with poison; and the shadow memory of such an
// allocation.
void *sim_alloc(size_t);
void *sim_shadow(void *, size_t);
void sim_free(void *, size_t);

// Called by a library's table when it is loaded.
void sim_register(const sim_kernel *, int kernel_count, const sim_constant *, int constant_count);
}
#pragma GCC visibility pop
