// A thread of the GPU: a stack of its own, and where it waits.
#pragma once
#include "abi.h"

enum class State : uint8_t { Ready, AtThreadgroupBarrier, AtSimd, Done };

struct Fiber {
  sim_thread thread;
  void *stack_pointer;
  char *stack;
  State state;
  // Where and for what it waits. `site` is the address of the call: it tells one barrier from another.
  const void *site;
  uint32_t flags;
  // A SIMD exchange: this lane's value, and where all lanes' values go.
  const void *mine;
  void *all;
  uint32_t size;
  uint32_t active_mask;
};

// The i-th fiber of the pool; they live as long as the library.
Fiber *fiber(size_t i);
// Makes it start `run(&fiber->thread)` when it is resumed.
void prepare(Fiber *, void (*run)(const sim_thread *));
// Runs it until it waits or ends.
void resume(Fiber *);
// Called on a fiber: back to whoever resumed it.
void wait_as(State);
// The fiber that runs now, or null.
Fiber *current_fiber();
