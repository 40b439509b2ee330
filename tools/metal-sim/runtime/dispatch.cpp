// Runs a dispatch one threadgroup at a time. Threads wait for each other at barriers and SIMD-group
// operations. Between two of them a thread runs alone; the host can reverse or shuffle the order of
// threads. A kernel that is correct in every order does not depend on a GPU's scheduling.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "fiber.h"
#include "library.h"

namespace {
constexpr uint32_t LANES = 32;
enum Order { FORWARD, BACKWARD, SHUFFLED, IN_TURNS };

void shuffle(std::vector<uint32_t> &items) {
  for (size_t i = items.size(); i > 1; i--)
    std::swap(items[i - 1], items[library.random() % i]);
}

// The numbers from 0 to count - 1, in the library's order.
std::vector<uint32_t> in_order(uint32_t count) {
  std::vector<uint32_t> items(count);
  for (uint32_t i = 0; i < count; i++)
    items[i] = library.order == BACKWARD ? count - 1 - i : i;
  if (library.order == SHUFFLED)
    shuffle(items);
  return items;
}

struct Dispatch {
  const std::string name;
  const sim_kernel &kernel;
  const sim_launch &launch;
  uint32_t groups[3];
  uint32_t bound_threads = 0; // fibers whose arguments are set to this dispatch's buffers
  std::vector<uint32_t> lanes;

  Dispatch(const char *name, const sim_kernel &kernel, const sim_launch &launch)
      : name(name), kernel(kernel), launch(launch) {
    for (int d = 0; d < 3; d++)
      groups[d] = launch.grid_is_threads ? (launch.grid[d] + launch.threadgroup[d] - 1) / launch.threadgroup[d]
                                         : launch.grid[d];
    for (uint32_t lane = 0; lane < LANES; lane++)
      lanes.push_back(library.order == BACKWARD   ? LANES - 1 - lane
                      : library.order == IN_TURNS ? (lane * 2 + 1 - lane / 16) % LANES
                                                  : lane);
  }

  void bind(sim_thread &t) {
    for (int b = 0; b < 31; b++)
      t.buffers[b] = b < launch.buffer_count ? (uint64_t)launch.buffers[b].data + launch.buffers[b].offset : 0;
  }

  // Returns the number of threads.
  uint32_t start_threads(const uint32_t group[3]) {
    const uint32_t *size = launch.threadgroup;
    uint32_t here[3]; // the last threadgroup of a row may be smaller if the grid counts threads
    for (int d = 0; d < 3; d++)
      here[d] = launch.grid_is_threads ? std::min(size[d], launch.grid[d] - group[d] * size[d]) : size[d];
    uint32_t count = here[0] * here[1] * here[2];
    uint64_t memory[31] = {};
    for (int m = 0; m < launch.threadgroup_memory_count; m++)
      memory[m] = (uint64_t)library.add_variable("argument " + std::to_string(m), launch.threadgroup_memory[m]);
    make_fibers(count);
    for (; bound_threads < count; bound_threads++)
      bind(fibers[bound_threads].thread);
    for (uint32_t i = 0; i < count; i++) {
      sim_thread &t = fibers[i].thread;
      uint32_t x = i % here[0], y = i / here[0] % here[1], z = i / here[0] / here[1];
      memcpy(t.threadgroup_memory, memory, sizeof memory);
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
      prepare(i, kernel.run);
    }
    return count;
  }

  void run_threadgroup(const uint32_t group[3]) {
    library.forget_threadgroup();
    checker.begin_threadgroup(group);
    uint32_t threads = start_threads(group);
    do {
      run_to_barrier(threads);
    } while (library.error.empty() && pass_barrier(threads));
  }

  // Runs until every thread waits at a threadgroup barrier or has returned.
  void run_to_barrier(uint32_t threads) {
    std::vector<uint32_t> running = in_order((threads + LANES - 1) / LANES);
    size_t turn = 0;
    while (!running.empty() && library.error.empty()) {
      // Each SIMD-group runs until it must wait, or only to its next SIMD operation (interleaved).
      turn = library.order == SHUFFLED ? library.random() % running.size() : turn % running.size();
      if (!step(running[turn], threads))
        running.erase(running.begin() + turn);
      else if (library.order == IN_TURNS)
        turn++;
    }
  }

  // Runs every lane until it waits, then completes a SIMD operation; false if no lane waits at one.
  bool step(uint32_t simdgroup, uint32_t threads) {
    uint32_t first = simdgroup * LANES, width = std::min(threads - first, LANES);
    if (library.order == SHUFFLED)
      shuffle(lanes);
    Fiber *ready[LANES];
    uint32_t count = 0;
    for (uint32_t lane : lanes)
      if (lane < width && fibers[first + lane].state == State::Ready)
        ready[count++] = &fibers[first + lane];
    run_in_turn(ready, count);
    return exchange(first, width);
  }

  bool exchange(uint32_t first, uint32_t width) {
    const Fiber *leader = nullptr;
    uint32_t mask = 0, live = 0;
    for (uint32_t lane = 0; lane < width; lane++) {
      const Fiber *f = &fibers[first + lane];
      live |= uint32_t(f->state != State::Done) << lane;
      if (f->state != State::AtSimd)
        continue;
      if (!leader)
        leader = f;
      if (f->site == leader->site && f->size == leader->size)
        mask |= 1u << lane;
    }
    if (!leader)
      return false;
    if (mask != live)
      warn_of_divergence(first, width);
    if (leader->size == 0)
      checker.pass_simd_barrier(first / LANES, leader->flags);
    else
      gather(first, width, mask, leader->size);
    for (uint32_t lane = 0; lane < width; lane++)
      if (mask >> lane & 1)
        fibers[first + lane].state = State::Ready;
    return true;
  }

  void gather(uint32_t first, uint32_t width, uint32_t mask, uint32_t size) {
    sim_exchange *shared = fibers[first].exchange;
    shared->mask = mask;
    shared->has_result = 0;
    if (~mask)
      memset(shared->values, 0xFF, LANES * size);
    for (uint32_t lane = 0; lane < width; lane++) {
      if (!(mask >> lane & 1))
        continue;
      const void *mine = fibers[first + lane].mine;
      if (size == 4) // the usual size
        memcpy(shared->values + lane * 4, mine, 4);
      else if (size == 24) // a product of matrices
        memcpy(shared->values + lane * 24, mine, 24);
      else
        memcpy(shared->values + lane * size, mine, size);
    }
  }

  void warn_of_divergence(uint32_t first, uint32_t width) {
    bool at_barrier = false;
    for (uint32_t lane = 0; lane < width; lane++)
      at_barrier |= fibers[first + lane].state == State::AtThreadgroupBarrier;
    library.warn(name, at_barrier ? "a SIMD operation that some lanes do not reach: they wait at threadgroup_barrier"
                                  : "lanes of one SIMD-group wait at different SIMD operations");
  }

  // Releases the threads that wait at a barrier; false if all have returned.
  bool pass_barrier(uint32_t threads) {
    const void *site = nullptr;
    uint32_t waiting = 0, flags = ~0u;
    bool different_sites = false;
    for (uint32_t i = 0; i < threads; i++) {
      Fiber *f = &fibers[i];
      if (f->state == State::Done)
        continue;
      waiting++;
      different_sites |= site && site != f->site;
      flags &= f->flags;
      site = f->site;
      f->state = State::Ready;
    }
    if (waiting == 0)
      return false;
    if (waiting < threads)
      library.warn(name, "threadgroup_barrier not reached by every thread (some had returned)");
    if (different_sites)
      library.warn(name, "threads of one threadgroup wait at different barriers");
    if (flags == 0)
      library.warn(name, "threadgroup_barrier(mem_none) orders no memory");
    checker.pass_barrier(flags);
    return true;
  }
};
} // namespace

extern "C" int sim_dispatch(const char *name, const sim_launch *launch) {
  library.error.clear();
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
  checker.begin_dispatch(name, *launch);
  const uint32_t *groups = dispatch.groups;
  for (uint32_t i : in_order(groups[0] * groups[1] * groups[2])) {
    uint32_t group[3] = {i % groups[0], i / groups[0] % groups[1], i / groups[0] / groups[1]};
    dispatch.run_threadgroup(group);
    if (library.error.empty() && library.threadgroup_memory() > SIM_THREADGROUP_MEMORY)
      library.error = std::string(name) + ": threadgroup memory over 32 KiB";
    if (!library.error.empty())
      break;
  }
  checker.end_dispatch();
  return library.error.empty() ? 0 : 3;
}
