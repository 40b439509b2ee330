// A fiber for each thread of the GPU: its stack, and the place where it waits.
#pragma once
#include "abi.h"

enum class State : uint8_t { Ready, AtThreadgroupBarrier, AtSimd, Done };

struct Fiber {
  State state;
  uint32_t flags; // of the barrier
  // The place where it waits: the address of the call identifies the barrier.
  const void *site;
  // This lane's value in a SIMD exchange. A SIMD-group barrier has none.
  const void *mine;
  uint32_t size;
  sim_exchange *exchange; // of its SIMD-group
  void *stack_pointer;
  sim_thread thread;
};

// Fibers live as long as the library. After make_fibers(count) the first `count` exist.
extern Fiber *fibers; // [SIM_THREADS_PER_THREADGROUP]
void make_fibers(uint32_t count);
// Prepares the i-th fiber to call `run(&fiber->thread)` when it is first switched to.
void prepare(uint32_t i, void (*run)(const sim_thread *));
// Runs these fibers one after the other, each until it waits or ends.
void run_in_turn(Fiber *const *, uint32_t count);
// Called on a fiber: switches to the next one.
void wait_as(State);
// The running fiber, or null.
Fiber *current_fiber();
// Whether this address is on a stack, in a fiber or in an exchange: memory that the threads of a GPU
// would not share.
bool is_private(const void *);
