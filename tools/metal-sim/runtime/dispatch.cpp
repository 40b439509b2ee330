// Runs a dispatch one threadgroup at a time. Barriers and SIMD-group operations are where threads wait for each other;
// between two of them a thread runs alone, in an order the host can turn round or shuffle. What holds for every order
// needs no luck on a GPU.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "fiber.h"
#include "library.h"

namespace {
constexpr uint32_t LANES = 32;

struct Dispatch {
  const std::string name;
  const sim_kernel &kernel;
  const sim_launch &launch;
  uint32_t groups[3];
  std::vector<std::vector<char>> dynamic_memory; // one a threadgroup argument
  size_t dynamic_total = 0;

  Dispatch(const char *name, const sim_kernel &kernel, const sim_launch &launch)
      : name(name), kernel(kernel), launch(launch) {
    for (int d = 0; d < 3; d++)
      groups[d] = launch.grid_is_threads ? (launch.grid[d] + launch.threadgroup[d] - 1) / launch.threadgroup[d]
                                         : launch.grid[d];
    for (int i = 0; i < launch.threadgroup_memory_count; i++) {
      dynamic_memory.emplace_back(launch.threadgroup_memory[i] + 16);
      dynamic_total += launch.threadgroup_memory[i];
    }
  }

  // Returns the number of threads.
  uint32_t start_threads(const uint32_t group[3]) {
    const uint32_t *size = launch.threadgroup;
    uint32_t here[3]; // the last threadgroup of a row is smaller where the grid counts threads
    for (int d = 0; d < 3; d++)
      here[d] = launch.grid_is_threads ? std::min(size[d], launch.grid[d] - group[d] * size[d]) : size[d];
    uint32_t count = here[0] * here[1] * here[2];
    for (auto &memory : dynamic_memory)
      memset(memory.data(), 0xFF, memory.size());
    for (uint32_t i = 0; i < count; i++) {
      Fiber *f = fiber(i);
      sim_thread &t = f->thread;
      uint32_t x = i % here[0], y = i / here[0] % here[1], z = i / here[0] / here[1];
      for (int b = 0; b < 31; b++)
        t.buffers[b] = b < launch.buffer_count ? (uint64_t)launch.buffers[b] : 0;
      for (size_t m = 0; m < 31; m++)
        t.threadgroup_memory[m] = m < dynamic_memory.size() ? ((uint64_t)dynamic_memory[m].data() + 15) / 16 * 16 : 0;
      t.thread_position_in_threadgroup = sim_uint3{x, y, z};
      t.threadgroup_position_in_grid = sim_uint3{group[0], group[1], group[2]};
      t.thread_position_in_grid = sim_uint3{group[0] * size[0] + x, group[1] * size[1] + y, group[2] * size[2] + z};
      t.threads_per_threadgroup = sim_uint3{here[0], here[1], here[2]};
      t.threadgroups_per_grid = sim_uint3{groups[0], groups[1], groups[2]};
      t.threads_per_grid = sim_uint3{groups[0] * size[0], groups[1] * size[1], groups[2] * size[2]};
      t.thread_index_in_threadgroup = i;
      t.thread_index_in_simdgroup = i % LANES;
      t.simdgroup_index_in_threadgroup = i / LANES;
      t.simdgroups_per_threadgroup = (count + LANES - 1) / LANES;
      t.threads_per_simdgroup = LANES;
      prepare(f, kernel.run);
    }
    return count;
  }

  void run_threadgroup(const uint32_t group[3]) {
    library.forget_threadgroup();
    uint32_t threads = start_threads(group), simdgroups = (threads + LANES - 1) / LANES;
    std::vector<uint32_t> order(simdgroups);
    for (uint32_t i = 0; i < simdgroups; i++)
      order[i] = library.order == 1 ? simdgroups - 1 - i : i;
    do {
      if (library.order == 2)
        for (uint32_t i = simdgroups; i > 1; i--)
          std::swap(order[i - 1], order[library.random() % i]);
      for (uint32_t simdgroup : order) {
        uint32_t first = simdgroup * LANES;
        run_simdgroup(first, std::min(threads - first, LANES));
      }
    } while (pass_barrier(threads));
  }

  // Until every lane waits at a threadgroup barrier or has returned.
  void run_simdgroup(uint32_t first, uint32_t width) {
    do {
      uint32_t start = library.order == 2 ? uint32_t(library.random() % width) : 0;
      for (uint32_t i = 0; i < width; i++) {
        Fiber *f = fiber(first + (library.order == 1 ? width - 1 - i : (i + start) % width));
        if (f->state == State::Ready)
          resume(f);
      }
    } while (exchange(first, width));
  }

  // Completes one SIMD operation among the lanes that wait at the same place; false if none waits.
  bool exchange(uint32_t first, uint32_t width) {
    const Fiber *leader = nullptr;
    uint32_t mask = 0;
    for (uint32_t lane = 0; lane < width; lane++) {
      const Fiber *f = fiber(first + lane);
      if (f->state != State::AtSimd)
        continue;
      if (!leader)
        leader = f;
      if (f->site == leader->site && f->size == leader->size)
        mask |= 1u << lane;
    }
    for (uint32_t lane = 0; lane < width; lane++) {
      if (!(mask >> lane & 1))
        continue;
      Fiber *f = fiber(first + lane);
      f->active_mask = mask;
      f->state = State::Ready;
      for (uint32_t other = 0; f->all && other < LANES; other++) {
        char *slot = (char *)f->all + other * f->size;
        if (mask >> other & 1)
          memcpy(slot, fiber(first + other)->mine, f->size);
        else
          memset(slot, 0xFF, f->size);
      }
    }
    return mask != 0;
  }

  // Lets the threads pass the barrier they wait at; false if all have returned.
  bool pass_barrier(uint32_t threads) {
    const void *site = nullptr;
    uint32_t waiting = 0;
    bool different_sites = false, orders_nothing = false;
    for (uint32_t i = 0; i < threads; i++) {
      Fiber *f = fiber(i);
      if (f->state == State::Done)
        continue;
      waiting++;
      different_sites |= site && site != f->site;
      orders_nothing |= f->flags == 0;
      site = f->site;
      f->state = State::Ready;
    }
    if (waiting == 0)
      return false;
    if (waiting < threads)
      library.warn(name, "threadgroup_barrier not reached by every thread (some had returned)");
    if (different_sites)
      library.warn(name, "threads of one threadgroup wait at different barriers");
    if (orders_nothing)
      library.warn(name, "threadgroup_barrier(mem_none) orders no memory");
    return true;
  }
};
} // namespace

extern "C" int sim_dispatch(const char *name, const sim_launch *launch) {
  auto found = library.kernels.find(name);
  if (found == library.kernels.end()) {
    library.error = std::string("no kernel named ") + name;
    return 1;
  }
  size_t threads = size_t(launch->threadgroup[0]) * launch->threadgroup[1] * launch->threadgroup[2];
  if (threads == 0 || threads > SIM_THREADS_PER_THREADGROUP) {
    library.error = std::string(name) + ": threads per threadgroup must be 1..=1024";
    return 2;
  }
  Dispatch dispatch(name, found->second, *launch);
  for (uint32_t z = 0; z < dispatch.groups[2]; z++)
    for (uint32_t y = 0; y < dispatch.groups[1]; y++)
      for (uint32_t x = 0; x < dispatch.groups[0]; x++) {
        uint32_t group[3] = {x, y, z};
        dispatch.run_threadgroup(group);
        if (library.arena_used + dispatch.dynamic_total > SIM_THREADGROUP_MEMORY) {
          library.error = std::string(name) + ": threadgroup memory over 32 KiB";
          return 3;
        }
      }
  return 0;
}
