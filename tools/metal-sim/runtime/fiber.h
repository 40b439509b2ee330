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

// They live as long as the library. Those below `count` are there after make_fibers(count).
extern Fiber *fibers; // [SIM_THREADS_PER_THREADGROUP]
void make_fibers(uint32_t count);
// Makes the i-th start `run(&fiber->thread)` when its turn comes.
void prepare(uint32_t i, void (*run)(const sim_thread *));
// Runs them one after the other, each until it waits or ends.
void run_in_turn(Fiber *const *, uint32_t count);
// Called on a fiber: it is the next one's turn.
void wait_as(State);
// The fiber that runs now, or null.
Fiber *current_fiber();
// Whether this address is on a stack, in a fiber or in an exchange: nothing that threads of a GPU would share.
bool is_private(const void *);
