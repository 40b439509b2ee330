// Fibers with a context switch in assembly. A dispatch has up to 1024 fibers and switches millions of
// times; ucontext, which makes a system call per switch, would be several times slower. One OS thread
// at a time runs a library's kernels.
#include "fiber.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#ifndef __x86_64__
#error "the context switch is written for x86-64"
#endif

extern "C" void sim_switch(void **save, void *to);
// Saves the registers that a callee must preserve by the System V ABI.
__asm__(R"(
.text
.globl sim_switch
.hidden sim_switch
.type sim_switch,@function
sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sim_switch,.-sim_switch
)");

namespace {
constexpr size_t STACK_SIZE = 256 * 1024;
constexpr size_t PAGE = 4096;
constexpr int SAVED_REGISTERS = 6;
constexpr uint32_t LANES = 32;
constexpr uint32_t SIMDGROUPS = SIM_THREADS_PER_THREADGROUP / LANES;

// One block of memory, so that one comparison distinguishes it from memory that kernels share.
struct Private {
  Fiber fibers[SIM_THREADS_PER_THREADGROUP];
  sim_exchange exchanges[SIMDGROUPS];
  alignas(PAGE) char stacks[SIM_THREADS_PER_THREADGROUP][PAGE + STACK_SIZE]; // each above a page that traps
};

Private *memory = nullptr;
uint32_t made = 0;
void *scheduler_stack_pointer = nullptr;
void (*entry_point)(const sim_thread *) = nullptr;
// The running fiber, and the fibers that run next.
Fiber *current = nullptr;
Fiber *const *next = nullptr, *const *last = nullptr;

void enter() {
  entry_point(&current->thread);
  wait_as(State::Done);
  abort(); // a finished fiber is never switched to
}

void make_memory() {
  void *map =
      mmap(nullptr, sizeof(Private), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    fprintf(stderr, "metal-sim: no memory for the threads' stacks\n");
    abort();
  }
  memory = (Private *)map;
  fibers = memory->fibers;
}
} // namespace

Fiber *fibers = nullptr;
Fiber *current_fiber() { return current; }
bool is_private(const void *p) { return uintptr_t(p) - uintptr_t(memory) < sizeof(Private); }

void make_fibers(uint32_t count) {
  if (!memory)
    make_memory();
  for (; made < count; made++) {
    mprotect(memory->stacks[made], PAGE, PROT_NONE);
    memory->fibers[made].exchange = &memory->exchanges[made / LANES];
  }
}

void prepare(uint32_t i, void (*run)(const sim_thread *)) {
  entry_point = run;
  Fiber *f = &fibers[i];
  // The stacks begin at different offsets in their pages, because a cache selects its set by the low
  // bits of an address.
  char *top = memory->stacks[i] + PAGE + STACK_SIZE - (1 + i % LANES) * 192;
  // The stack as sim_switch leaves it: the saved registers, then the return address. One more word
  // keeps the alignment that a call leaves.
  uint64_t *sp = (uint64_t *)top;
  *--sp = 0;
  *--sp = (uint64_t)&enter;
  for (int r = 0; r < SAVED_REGISTERS; r++)
    *--sp = 0;
  f->stack_pointer = sp;
  f->state = State::Ready;
}

void run_in_turn(Fiber *const *list, uint32_t count) {
  if (count == 0)
    return;
  next = list + 1;
  last = list + count;
  current = *list;
  sim_switch(&scheduler_stack_pointer, current->stack_pointer);
}

// Switches directly to the next fiber; going through the scheduler would take two switches.
void wait_as(State state) {
  Fiber *f = current;
  f->state = state;
  current = next == last ? nullptr : *next++;
  sim_switch(&f->stack_pointer, current ? current->stack_pointer : scheduler_stack_pointer);
}
