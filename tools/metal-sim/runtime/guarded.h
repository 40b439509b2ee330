// Memory between two pages that trap, so that a read or write out of bounds stops the program at once.
#pragma once
#include <cstddef>
#include <cstring>
#include <sys/mman.h>

struct Guarded {
  static constexpr size_t PAGE = 4096;
  char *map = nullptr;
  size_t map_size = 0;
  char *data = nullptr;

  // Ends at the upper page, less what 16-byte alignment costs: overruns below 16 bytes may go unseen.
  static Guarded alloc(size_t size) {
    Guarded g;
    g.map_size = map_size_of(size);
    void *map = mmap(nullptr, g.map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
      return g;
    g.map = (char *)map;
    mprotect(g.map, PAGE, PROT_NONE);
    mprotect(g.map + g.map_size - PAGE, PAGE, PROT_NONE);
    g.data = g.map + g.map_size - PAGE - aligned(size);
    return g;
  }
  // The allocation that alloc(size) returned with this data.
  static Guarded of(void *data, size_t size) {
    Guarded g;
    g.data = (char *)data;
    g.map_size = map_size_of(size);
    g.map = g.data + aligned(size) + PAGE - g.map_size;
    return g;
  }
  // 0xFF reads as NaN in every float type.
  void poison() { memset(map + PAGE, 0xFF, map_size - 2 * PAGE); }
  void free() { munmap(map, map_size); }

private:
  static size_t aligned(size_t size) { return (size + 15) / 16 * 16; }
  static size_t map_size_of(size_t size) { return (size + PAGE - 1) / PAGE * PAGE + 2 * PAGE; }
};
