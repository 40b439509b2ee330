// A thread of the GPU: a stack of its own, and where it waits.
#pragma once
#include "abi.h"

enum class State : uint8_t { Ready, AtThreadgroupBarrier, AtSimd, Done };

struct Fiber {
  State state;
  uint32_t flags; // of the barrier
  // Where it waits: the address of the call tells one barrier from another.
  const void *site;
  // A SIMD exchange: this lane's value. A barrier of the SIMD-group has none.
  const void *mine;
  uint32_t size;
  sim_exchange *exchange; // of its SIMD-group
  void *stack_pointer;
  sim_thread thread;
};

// The i-th fiber, below SIM_THREADS_PER_THREADGROUP; they live as long as the library.
Fiber *fiber(uint32_t i);
// Makes it start `run(&fiber->thread)` when it is resumed.
void prepare(uint32_t i, void (*run)(const sim_thread *));
// Runs it until it waits or ends.
void resume(Fiber *);
// Called on a fiber: back to whoever resumed it.
void wait_as(State);
// The fiber that runs now, or null.
Fiber *current_fiber();
// Whether this address is on a stack, in a fiber or in an exchange: nothing that threads of a GPU would share.
bool is_private(const void *);
