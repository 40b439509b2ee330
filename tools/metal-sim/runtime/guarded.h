// Memory between two pages that trap, so that a read or write far out of bounds stops the program at once. Behind the
// upper one lies the shadow of checked runs: a cell for every byte, which costs nothing until it is touched.
#pragma once
#include <cstddef>
#include <cstdint>
#include <sys/mman.h>

constexpr size_t SHADOW_CELL = 16; // bytes of shadow a byte

// What memory holds that no one has written: NaN in every float type, and no number that one would choose. From an even
// address on.
constexpr uint16_t POISON = 0xFFFB;
inline void poison(void *data, size_t size) {
  for (size_t i = 0; i < size / 2; i++)
    ((uint16_t *)data)[i] = POISON;
  if (size % 2)
    ((uint8_t *)data)[size - 1] = POISON & 0xFF;
}

struct Guarded {
  static constexpr size_t PAGE = 4096;
  char *map = nullptr;
  size_t body = 0; // bytes between the two pages
  char *data = nullptr;

  // Ends at the upper page, less what 16-byte alignment costs: smaller overruns are for the checked mode to see.
  static Guarded alloc(size_t size) {
    Guarded g;
    g.body = body_of(size);
    void *map =
        mmap(nullptr, g.total(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
      return g;
    g.map = (char *)map;
    mprotect(g.map, PAGE, PROT_NONE);
    mprotect(g.map + PAGE + g.body, PAGE, PROT_NONE);
    g.data = g.map + PAGE + g.body - aligned(size);
    return g;
  }
  // The allocation that alloc(size) returned with this data.
  static Guarded of(void *data, size_t size) {
    Guarded g;
    g.data = (char *)data;
    g.body = body_of(size);
    g.map = g.data + aligned(size) - g.body - PAGE;
    return g;
  }
  void poison() { ::poison(map + PAGE, body); }
  void free() { munmap(map, total()); }
  // The cell of the first byte of `data`.
  void *shadow() const { return map + 2 * PAGE + body + (data - map - PAGE) * SHADOW_CELL; }

private:
  size_t total() const { return 2 * PAGE + body * (1 + SHADOW_CELL); }
  static size_t aligned(size_t size) { return (size + 15) / 16 * 16; }
  static size_t body_of(size_t size) { return (size + PAGE - 1) / PAGE * PAGE; }
};
