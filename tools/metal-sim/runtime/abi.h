// What crosses the edges of the runtime: to compiled kernels (stdlib/library/thread.h and the translator's tables
// mirror the structs), and to whoever dispatches them (the fake device, the tests).
#pragma once
#include <cstddef>
#include <cstdint>

typedef uint32_t sim_uint3 __attribute__((ext_vector_type(3)));

// Everything a thread of a kernel can ask for; names are Metal's.
struct sim_thread {
  uint64_t buffers[31];
  uint64_t threadgroup_memory[31];
  sim_uint3 thread_position_in_grid, thread_position_in_threadgroup, threadgroup_position_in_grid;
  sim_uint3 threads_per_threadgroup, threadgroups_per_grid, threads_per_grid;
  uint32_t thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
  uint32_t simdgroups_per_threadgroup, threads_per_simdgroup;
};
// Where the lanes of a SIMD-group meet. The lanes that take part find every lane's value in `values`, one after the
// other; the first that needs something made of them all puts it into `result` and says so.
struct sim_exchange {
  uint32_t mask; // of lanes that take part
  uint32_t has_result;
  alignas(64) char result[256];
  alignas(64) char values[32 * 32];
};
constexpr uint32_t SIM_EXCHANGE_SIZE = 32; // bytes a lane can give

struct sim_kernel {
  const char *name;
  void (*run)(const sim_thread *);
};
struct sim_constant {
  int id;
  const char *name;
  void (*set)(const void *value, unsigned size);
};

// A buffer that is bound: the kernel gets data + offset. `shadow` is what checked runs remember of it; without one it
// cannot be written (setBytes).
struct sim_buffer {
  char *data;
  size_t length, offset;
  void *shadow;
  int is_fresh; // made without contents: what is still poison there was never written
};

// Bytes of buffers, without those of setBytes, that the threads of a checked dispatch asked for; and how many different ones.
struct sim_traffic {
  uint64_t read, written, read_once, written_once;
};

// A grid and how it is cut. `grid` counts threads where `grid_is_threads` (dispatchThreads), else threadgroups.
struct sim_launch {
  uint32_t grid[3];
  uint32_t threadgroup[3];
  int grid_is_threads;
  const sim_buffer *buffers;
  int buffer_count;
  const uint32_t *threadgroup_memory; // lengths in bytes
  int threadgroup_memory_count;
  // Counts what is ordered, over all libraries that share buffers; may be null if they do not.
  uint32_t *clock;
  // What was counted by the last barrier between commands: those since may run at the same time. 0: it runs alone.
  uint32_t ordered_until;
  sim_traffic *traffic; // may be null
};

constexpr size_t SIM_THREADGROUP_MEMORY = 32768;
constexpr uint32_t SIM_THREADS_PER_THREADGROUP = 1024;

#pragma GCC visibility push(default) // everything else in a library is its own affair
extern "C" {
// 0, or an error that sim_error() describes.
int sim_dispatch(const char *kernel, const sim_launch *);
const char *sim_error();
// One line for each kind of suspect behaviour since sim_clear(), beginning with the kernel's name.
const char *sim_warnings();
void sim_clear();
// Order in which threadgroups, and between barriers SIMD-groups and lanes, run: 0 forward, 1 backward, 2 shuffled by
// the seed, 3 forward, but SIMD-groups take turns at every SIMD operation and odd lanes come first.
void sim_thread_order(int order, uint64_t seed);
// How many constants of the library have this id.
int sim_set_constant(int id, const void *value, unsigned size);
int sim_kernel_count();
const char *sim_kernel_name(int);
// Position in the grid of the thread that runs now; false outside a dispatch.
bool sim_running_thread(uint32_t position[3]);
// Memory that traps past its end, filled with poison; and the shadow of what sim_alloc(size) returned.
void *sim_alloc(size_t);
void *sim_shadow(void *, size_t);
void sim_free(void *, size_t);

// Called by a library's table when it is loaded.
void sim_register(const sim_kernel *, int kernel_count, const sim_constant *, int constant_count);
}
#pragma GCC visibility pop
