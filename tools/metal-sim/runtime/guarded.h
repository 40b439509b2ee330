// Memory between two guard pages, which trap, so that a read or write far out of bounds stops the
// program at once. Behind the upper one is the shadow memory of the checked mode: a cell for every
// byte, which takes no memory until it is accessed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <sys/mman.h>

constexpr size_t SHADOW_CELL = 16; // bytes of shadow memory per byte

// The contents of unwritten memory: NaN in every float type, and an unlikely integer. The pattern
// begins at an even address.
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
  size_t body = 0; // bytes between the two guard pages
  char *data = nullptr;

  // The memory ends at the upper guard page, except for up to 15 bytes of alignment. Only the checked
  // mode detects an overrun that stays within these.
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
  // The allocation whose data alloc(size) returned.
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
