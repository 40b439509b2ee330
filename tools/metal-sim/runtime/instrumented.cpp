// The functions that kernels compiled with clang's -fsanitize=thread call before each memory access.
// <metal_atomic> uses volatile accesses, so a volatile access counts as atomic.
#include <cstring>

#include "check.h"

// Clang treats 16-byte accesses as aligned if the address is a multiple of 8.
#define ACCESS(NAME, SIZE, KIND)                                                                                       \
  void __tsan_##NAME##SIZE(void *p) { checker.access(p, SIZE, Access::KIND, SIZE < 8 ? SIZE : 8); }                   \
  void __tsan_unaligned_##NAME##SIZE(void *p) { checker.access(p, SIZE, Access::KIND); }
#define ACCESSES(SIZE)                                                                                                 \
  ACCESS(read, SIZE, Read)                                                                                             \
  ACCESS(write, SIZE, Write)                                                                                           \
  ACCESS(volatile_read, SIZE, AtomicRead)                                                                              \
  ACCESS(volatile_write, SIZE, AtomicWrite)

extern "C" {
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

// Called when an instrumented library is loaded, before the checker is created.
void __tsan_init() { is_instrumented = true; }
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}

void *__tsan_memcpy(void *to, const void *from, size_t size) {
  checker.access(from, size, Access::Read);
  checker.access(to, size, Access::Write);
  return memcpy(to, from, size);
}
void *__tsan_memmove(void *to, const void *from, size_t size) {
  checker.access(from, size, Access::Read);
  checker.access(to, size, Access::Write);
  return memmove(to, from, size);
}
void *__tsan_memset(void *to, int value, size_t size) {
  checker.access(to, size, Access::Write);
  return memset(to, value, size);
}
}
