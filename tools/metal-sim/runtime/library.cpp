// The interface of the runtime: functions that kernels call, and functions that the host calls.
#include "library.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "fiber.h"
#include "guarded.h"

// Initialized before the tables, whose constructors register kernels in it.
__attribute__((init_priority(101))) Library library;

char *Library::add_variable(const std::string &name, size_t size) {
  if (!arena)
    arena = (char *)mmap(nullptr, SLOT * SLOTS, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED || variables.size() == SLOTS || size > SLOT - 2 * BEFORE_VARIABLE) {
    fprintf(stderr, "metal-sim: threadgroup memory %s of %zu bytes: no room\n", name.c_str(), size);
    abort();
  }
  char *data = arena + variables.size() * SLOT + BEFORE_VARIABLE;
  poison(data, size); // a new threadgroup's memory is NaN, not zero
  variables.push_back({name, data, size});
  return data;
}

namespace {
void report_fault(int, siginfo_t *info, void *) {
  char text[256];
  uint32_t at[3];
  int length =
      sim_running_thread(at)
          ? snprintf(text, sizeof text, "metal-sim: out-of-bounds access at %p by thread_position_in_grid (%u,%u,%u)\n",
                     info->si_addr, at[0], at[1], at[2])
          : snprintf(text, sizeof text, "metal-sim: fault at %p outside a kernel\n", info->si_addr);
  (void)!write(2, text, length);
  _exit(139);
}

void catch_faults() {
  static bool done = false;
  if (done)
    return;
  done = true;
  stack_t stack{};
  stack.ss_size = 65536;
  stack.ss_sp = malloc(stack.ss_size);
  sigaltstack(&stack, nullptr);
  struct sigaction action{};
  action.sa_sigaction = report_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
}
} // namespace

extern "C" {
// ---- called by kernels ----

// libgcc 12 cannot convert to bfloat: round to nearest even, keep NaN.
__bf16 __truncsfbf2(float x) {
  uint32_t bits = __builtin_bit_cast(uint32_t, x);
  bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  uint16_t rounded = is_nan ? uint16_t(bits >> 16 | 0x40) : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  return __builtin_bit_cast(__bf16, rounded);
}
__bf16 __truncdfbf2(double x) { return __truncsfbf2((float)x); }

void __sim_barrier(uint32_t flags) {
  Fiber *f = current_fiber();
  f->site = __builtin_return_address(0);
  f->flags = flags;
  wait_as(State::AtThreadgroupBarrier);
}

void __sim_simd_barrier(uint32_t flags) {
  Fiber *f = current_fiber();
  f->site = __builtin_return_address(0);
  f->flags = flags;
  f->size = 0;
  wait_as(State::AtSimd);
}

sim_exchange *__sim_simd_exchange(const void *mine, uint32_t size) {
  Fiber *f = current_fiber();
  f->site = __builtin_return_address(0);
  f->mine = mine;
  f->size = size;
  wait_as(State::AtSimd);
  return f->exchange;
}

uint32_t __sim_lane() { return current_fiber()->thread.thread_index_in_simdgroup; }

uint64_t __sim_threadgroup_alloc(const void *key, uint64_t size, uint64_t name) {
  auto found = library.variable_of.find(key);
  if (found != library.variable_of.end())
    return (uint64_t)library.variables[found->second].data;
  library.variable_of[key] = library.variables.size();
  return (uint64_t)library.add_variable((const char *)name, size);
}

// For an argument whose function constant is false: readable, and all NaN.
uint64_t __sim_absent() {
  static char *page = nullptr;
  if (!page) {
    page = (char *)mmap(nullptr, Guarded::PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    poison(page, Guarded::PAGE);
    mprotect(page, Guarded::PAGE, PROT_READ);
    checker.absent = page;
  }
  return (uint64_t)page;
}

// ---- called by the host ----

void sim_register(const sim_kernel *kernels, int kernel_count, const sim_constant *constants, int constant_count) {
  for (int i = 0; i < kernel_count; i++)
    library.kernels[kernels[i].name] = kernels[i];
  library.constants.insert(library.constants.end(), constants, constants + constant_count);
}

const char *sim_error() { return library.error.c_str(); }
const char *sim_warnings() { return library.warnings.c_str(); }
void sim_clear() {
  library.error.clear();
  library.warnings.clear();
  library.warned.clear();
}
void sim_thread_order(int order, uint64_t seed) {
  library.order = order;
  library.random_state = (seed + 1) * 0x9E3779B97F4A7C15ull | 1; // never 0, because the generator would stay at 0
}
int sim_set_constant(int id, const void *value, unsigned size) {
  int set = 0;
  for (auto &constant : library.constants)
    if (constant.id == id) {
      constant.set(value, size);
      set++;
    }
  return set;
}
int sim_kernel_count() { return (int)library.kernels.size(); }
const char *sim_kernel_name(int i) { return std::next(library.kernels.begin(), i)->first.c_str(); }

bool sim_running_thread(uint32_t position[3]) {
  Fiber *f = current_fiber();
  for (int d = 0; f && d < 3; d++)
    position[d] = f->thread.thread_position_in_grid[d];
  return f != nullptr;
}

void *sim_alloc(size_t size) {
  catch_faults();
  Guarded memory = Guarded::alloc(size);
  if (memory.data)
    memory.poison();
  return memory.data;
}
void *sim_shadow(void *data, size_t size) { return Guarded::of(data, size).shadow(); }
void sim_free(void *data, size_t size) { Guarded::of(data, size).free(); }
}
