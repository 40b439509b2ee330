// Checks every memory access of the kernels of a checked library: bounds, uninitialised reads, data
// races.
//
// Two accesses to one byte race if different threads make them, at least one writes, they are not both
// atomic, and nothing orders them. Accesses are ordered by barriers of the threadgroup or SIMD-group,
// for the kind of memory that the barrier names, and by barriers between commands. The checker divides
// time into segments: every threadgroup and every barrier begins a new one.
#pragma once
#include <string>
#include <vector>

#include "abi.h"
#include "guarded.h"

enum class Access : uint8_t { Read, Write, AtomicRead, AtomicWrite };

// The last access to a byte. The shadow memory of a byte has two: the last write and the last read.
struct Seen {
  uint32_t segment; // 0: no access yet
  uint32_t simd_segment : 14, thread : 10, flags : 8;
};
struct Cell {
  Seen write, read;
};
static_assert(sizeof(Cell) == SHADOW_CELL);

// The segment of the running thread in one kind of memory.
struct Clock {
  uint32_t segment = 0;
  uint32_t simd_segments[32] = {}; // of each SIMD-group, counted within the segment
};

// A range of memory that kernels may access.
struct Region {
  std::string name;
  char *data;
  size_t length;
  size_t floor; // bytes before it are out of bounds: the buffer is bound at an offset
  Cell *cells;  // null: the memory is read-only
  bool is_fresh;
};

struct Checker {
  bool is_on = false;
  const char *absent = nullptr;

  void begin_dispatch(const char *kernel, const sim_launch &);
  void begin_threadgroup(const uint32_t group[3]);
  void pass_barrier(uint32_t flags);
  void pass_simd_barrier(uint32_t simdgroup, uint32_t flags);
  void end_dispatch();
  // Called on a fiber before the access. Does not return if the access is out of bounds or misaligned.
  void access(const void *, size_t, Access, size_t alignment = 1);

private:
  struct Group {
    uint32_t first_segment;
    uint32_t position[3];
  };
  std::string kernel;
  std::vector<Region> buffers;
  size_t last_buffer = 0;
  std::vector<Group> groups; // those that have begun
  sim_traffic own_traffic, *traffic = &own_traffic;
  uint32_t own_clock = 0, *clock = &own_clock, dispatch_began = 0, unordered_from = 0;
  Clock device, threadgroup;
  Cell *arena_cells = nullptr;

  void access_threadgroup(const char *, size_t, Access);
  void access_device(const char *, size_t, Access);
  void check(const Region &, const char *, size_t, Access, const Clock &, bool is_device);
  void report_race(const Region &, size_t offset, const Seen &, const char *did, const char *does);
  bool is_uninitialised(const Region &, const char *, size_t) const;
  std::string thread_at(uint32_t segment, uint32_t thread) const;
  std::string self() const;
  [[noreturn]] void stop(const std::string &what);
};

// Whether the library is instrumented.
extern bool is_instrumented;
extern Checker checker;
