// What clang's -fsanitize=thread makes a kernel call before each access to memory. A volatile access is one of
// <metal_atomic>'s, which are written so.
#include <cstring>

#include "check.h"

// Clang takes 16 bytes for aligned from 8 on.
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

// Called when the library is loaded, and only if it is instrumented: before the checker itself is made.
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
