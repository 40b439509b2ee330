// Watches every access that the kernels of a checked library make: bounds, uninitialised reads, data races.
//
// Two accesses of one byte race if they are of different threads, one writes, they are not both atomic, and nothing
// orders them. What orders: a barrier of the threadgroup or the SIMD-group, for the kind of memory that it names; and
// one between commands. Time is cut into segments: one begins with every threadgroup and every barrier that is passed.
#pragma once
#include <string>
#include <vector>

#include "abi.h"
#include "guarded.h"

enum class Access : uint8_t { Read, Write, AtomicRead, AtomicWrite };

// Who was last at a byte. Two of them, for writes and for reads, are the shadow of a byte.
struct Seen {
  uint32_t segment; // 0: no one
  uint32_t simd_segment : 14, thread : 10, flags : 8;
};
struct Cell {
  Seen write, read;
};
static_assert(sizeof(Cell) == SHADOW_CELL);

// The segment of the running thread in one kind of memory.
struct Clock {
  uint32_t segment = 0;
  uint32_t simd_segments[32] = {}; // by SIMD-group; they count within the segment
};

// A stretch of memory that kernels may use.
struct Region {
  std::string name;
  char *data;
  size_t length;
  size_t floor; // bytes before it are out of bounds: the buffer is bound at an offset
  Cell *cells;  // null: nothing can be written here
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
  // Called on a fiber, before the access. Does not return from an access that is out of bounds or not where its type may be.
  void access(const void *, size_t, Access, size_t alignment = 1);

private:
  struct Group {
    uint32_t first_segment;
    uint32_t position[3];
  };
  std::string kernel;
  std::vector<Region> buffers;
  size_t last_buffer = 0;
  std::vector<Group> groups; // that have begun
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

// Whether the library was compiled for it.
extern bool is_instrumented;
extern Checker checker;
