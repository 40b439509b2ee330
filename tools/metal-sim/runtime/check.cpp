#include "check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fiber.h"
#include "library.h"

bool is_instrumented;
Checker checker;

namespace {
constexpr uint32_t MEM_DEVICE = 1, MEM_THREADGROUP = 2; // of metal::mem_flags
constexpr uint32_t LANES = 32;
// Facts about the accesses that one Seen records.
enum : uint8_t {
  ATOMIC = 1,         // every access was atomic
  SEVERAL_LANES = 2,  // several lanes of the SIMD-group since its last barrier
  SEVERAL_SIMDS = 4,  // several SIMD-groups of the threadgroup since its last barrier
  SEVERAL_GROUPS = 8, // several threadgroups, of this dispatch or of concurrent ones
};

bool writes(Access a) { return a == Access::Write || a == Access::AtomicWrite; }
bool is_atomic(Access a) { return a == Access::AtomicRead || a == Access::AtomicWrite; }
const char *verb(Access a) {
  switch (a) {
  case Access::Read:
    return "reads";
  case Access::Write:
    return "writes";
  case Access::AtomicRead:
    return "atomically reads";
  default:
    return "atomically changes";
  }
}
uint32_t running_thread() { return current_fiber()->thread.thread_index_in_threadgroup; }

// Memory of the program itself: function constants, tables, literals.
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start, _end;
bool is_of_library(const char *p) { return p >= &__ehdr_start && p < &_end; }

// The current access.
struct Now {
  uint32_t segment, simd_segment, thread;
  uint32_t group_began;
  uint32_t unordered_from; // earlier segments are ordered before this access
  bool is_atomic;
};

bool races(const Seen &seen, const Now &now) {
  if (seen.segment < now.unordered_from || (now.is_atomic && (seen.flags & ATOMIC)))
    return false;
  if (seen.segment < now.group_began || (seen.flags & SEVERAL_GROUPS))
    return true;
  if (seen.segment < now.segment)
    return false;
  if ((seen.flags & SEVERAL_SIMDS) || seen.thread / LANES != now.thread / LANES)
    return true;
  return seen.simd_segment == now.simd_segment && ((seen.flags & SEVERAL_LANES) || seen.thread != now.thread);
}

// Records the access. Flags of earlier accesses are kept as long as others may race with them.
void record(Seen &seen, const Now &now) {
  uint8_t flags = 0;
  bool is_past = seen.segment < now.unordered_from;
  if (!is_past) {
    flags = seen.flags & SEVERAL_GROUPS;
    if (seen.segment < now.group_began)
      flags |= SEVERAL_GROUPS;
    else if (seen.segment < now.segment)
      is_past = !flags;
    else {
      flags |= seen.flags & SEVERAL_SIMDS;
      if (seen.thread / LANES != now.thread / LANES)
        flags |= SEVERAL_SIMDS;
      else if (seen.simd_segment == now.simd_segment)
        flags |= seen.thread != now.thread ? uint8_t(SEVERAL_LANES) : seen.flags & SEVERAL_LANES;
    }
  }
  if (now.is_atomic && (is_past || (seen.flags & ATOMIC)))
    flags |= ATOMIC;
  seen = Seen{now.segment, now.simd_segment, now.thread, flags};
}

void begin(Clock &clock, uint32_t segment) {
  clock.segment = segment;
  memset(clock.simd_segments, 0, sizeof clock.simd_segments);
}
} // namespace

void Checker::begin_dispatch(const char *name, const sim_launch &launch) {
  is_on = is_instrumented;
  kernel = name;
  clock = launch.clock ? launch.clock : &own_clock;
  traffic = launch.traffic ? launch.traffic : &own_traffic;
  dispatch_began = *clock + 1;
  unordered_from = launch.ordered_until ? launch.ordered_until + 1 : dispatch_began;
  groups.clear();
  buffers.clear();
  last_buffer = 0;
  for (int b = 0; is_on && b < launch.buffer_count; b++) {
    const sim_buffer &bound = launch.buffers[b];
    if (!bound.data)
      continue;
    std::string index = std::to_string(b);
    auto same = [&](const Region &r) { return r.data == bound.data && r.length == bound.length; };
    auto found = std::find_if(buffers.begin(), buffers.end(), same);
    if (found == buffers.end()) {
      buffers.push_back({"buffer " + index, bound.data, bound.length, bound.offset, (Cell *)bound.shadow,
                         bound.is_fresh != 0});
    } else { // two bindings of one buffer: it is unknown through which of them the access went
      found->name += " (or " + index + ")";
      found->floor = std::min(found->floor, bound.offset);
    }
  }
}

void Checker::begin_threadgroup(const uint32_t group[3]) {
  if (!is_on)
    return;
  if (*clock > UINT32_MAX / 2) {
    fprintf(stderr, "metal-sim: too long a run for the checked mode\n");
    abort();
  }
  uint32_t segment = ++*clock;
  groups.push_back({segment, {group[0], group[1], group[2]}});
  begin(device, segment);
  begin(threadgroup, segment);
}

void Checker::pass_barrier(uint32_t flags) {
  if (!is_on)
    return;
  uint32_t segment = ++*clock;
  if (flags & MEM_DEVICE)
    begin(device, segment);
  if (flags & MEM_THREADGROUP)
    begin(threadgroup, segment);
}

void Checker::pass_simd_barrier(uint32_t simdgroup, uint32_t flags) {
  if (flags & MEM_DEVICE)
    device.simd_segments[simdgroup]++;
  if (flags & MEM_THREADGROUP)
    threadgroup.simd_segments[simdgroup]++;
}

void Checker::end_dispatch() { buffers.clear(); }

void Checker::access(const void *address, size_t size, Access kind, size_t alignment) {
  if (is_private(address) || !current_fiber())
    return;
  const char *p = (const char *)address;
  if (uintptr_t(p) % alignment)
    stop(self() + " " + verb(kind) + " " + std::to_string(size) + " bytes at an address that is no multiple of " +
         std::to_string(alignment));
  if (library.arena && p >= library.arena && p < library.arena + SLOT * SLOTS)
    access_threadgroup(p, size, kind);
  else
    access_device(p, size, kind);
}

void Checker::access_threadgroup(const char *p, size_t size, Access kind) {
  if (!arena_cells) {
    void *map = mmap(nullptr, SLOT * SLOTS * sizeof(Cell), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
      stop("no memory for the shadow");
    arena_cells = (Cell *)map;
  }
  size_t slot = std::min(size_t(p - library.arena) / SLOT, library.variables.size() - 1);
  const Variable &v = library.variables[slot];
  Cell *cells = arena_cells + (v.data - library.arena);
  if (p < v.data || p + size > v.data + v.size)
    stop(self() + " " + verb(kind) + " " + std::to_string(size) + " bytes at byte " + std::to_string(p - v.data) +
         " of threadgroup memory " + v.name + ", which has " + std::to_string(v.size));
  for (size_t i = p - v.data; i < size_t(p - v.data) + size && !writes(kind); i++)
    if (cells[i].write.segment < groups.back().first_segment) {
      library.warn(kernel, "uninitialised " + v.name,
                   self() + " reads byte " + std::to_string(i) + " of threadgroup memory " + v.name +
                       ", which its threadgroup has not written");
      break;
    }
  static Region region; // static, so that its name is not built for every access
  if (region.name.compare(0, std::string::npos, v.name) != 0)
    region.name = v.name;
  region.data = v.data;
  region.cells = cells;
  check(region, p, size, kind, threadgroup, false);
}

void Checker::access_device(const char *p, size_t size, Access kind) {
  auto holds = [&](const Region &r) { return p >= r.data + r.floor && p + size <= r.data + r.length; };
  if (last_buffer >= buffers.size() || !holds(buffers[last_buffer])) {
    if (is_of_library(p))
      return;
    auto found = std::find_if(buffers.begin(), buffers.end(), holds);
    last_buffer = found - buffers.begin();
  }
  if (last_buffer == buffers.size()) {
    std::string what = self() + " " + verb(kind) + " " + std::to_string(size) + " bytes ";
    if (p >= absent && p < absent + Guarded::PAGE)
      stop(what + "of an argument that its function constant turns off");
    auto distance = [&](const Region &r) { return p < r.data ? r.data - p : p - r.data - ptrdiff_t(r.length); };
    auto nearest = std::min_element(buffers.begin(), buffers.end(),
                                    [&](const Region &a, const Region &b) { return distance(a) < distance(b); });
    if (nearest == buffers.end() || distance(*nearest) > ptrdiff_t(1) << 32)
      stop(what + "of a buffer that is not bound");
    stop(what + "at byte " + std::to_string(p - nearest->data) + " of " + nearest->name + ", which has " +
         std::to_string(nearest->length) +
         (nearest->floor ? " and is bound at " + std::to_string(nearest->floor) : std::string()));
  }
  const Region &r = buffers[last_buffer];
  if (!writes(kind) && r.is_fresh && is_uninitialised(r, p, size))
    library.warn(kernel, "uninitialised " + r.name,
                 self() + " reads byte " + std::to_string(p - r.data) + " of " + r.name + ", which no one has written");
  if (!r.cells)
    return;
  (writes(kind) ? traffic->written : traffic->read) += size;
  check(r, p, size, kind, device, true);
}

// A single byte may have the poison's value by chance, so the bytes beside it are compared too.
bool Checker::is_uninitialised(const Region &r, const char *p, size_t size) const {
  size_t unit = size == 2 ? 2 : 4, from = size_t(p - r.data) / unit * unit;
  for (size_t at = from; at < size_t(p - r.data) + size; at += unit) {
    size_t end = std::min(at + unit, r.length);
    bool is_poison = true;
    for (size_t i = at; i < end; i++)
      is_poison &= uint8_t(r.data[i]) == (i % 2 ? POISON >> 8 : POISON & 0xFF) && r.cells[i].write.segment == 0;
    if (is_poison)
      return true;
  }
  return false;
}

void Checker::check(const Region &r, const char *p, size_t size, Access kind, const Clock &clock, bool is_device) {
  uint32_t thread = running_thread(), group_began = groups.back().first_segment;
  Now now{clock.segment, clock.simd_segments[thread / LANES] & 0x3FFF,      thread,
          group_began,   is_device ? unordered_from : group_began, is_atomic(kind)};
  for (Cell *cell = r.cells + (p - r.data), *end = cell + size; cell != end;) {
    // The bytes of an access mostly have one history: the result for the first holds for all of them.
    const Cell was = *cell;
    Cell is = was;
    if (races(was.write, now))
      report_race(r, cell - r.cells, was.write, "wrote", verb(kind));
    if (writes(kind) && races(was.read, now))
      report_race(r, cell - r.cells, was.read, "read", verb(kind));
    Seen &last = writes(kind) ? is.write : is.read;
    bool is_new = is_device && last.segment < dispatch_began;
    record(last, now);
    do {
      *cell++ = is;
      (writes(kind) ? traffic->written_once : traffic->read_once) += is_new;
    } while (cell != end && !memcmp(cell, &was, sizeof was));
  }
}

void Checker::report_race(const Region &r, size_t offset, const Seen &seen, const char *did, const char *does) {
  bool of_group = seen.segment >= groups.back().first_segment;
  std::string order = seen.segment < dispatch_began                     ? "with no barrier between the commands"
                      : of_group && !(seen.flags & SEVERAL_GROUPS) ? "with no barrier between"
                                                                        : "in the same dispatch";
  std::string other = seen.segment < dispatch_began                  ? "another command"
                      : of_group && seen.thread == running_thread() ? "others"
                                                                     : thread_at(seen.segment, seen.thread);
  library.warn(kernel, "race " + r.name + did + does,
               "data race at byte " + std::to_string(offset) + " of " + r.name + ": " + self() + " " + does + " what " +
                   other + " " + did + " " + order);
}

std::string Checker::thread_at(uint32_t segment, uint32_t thread) const {
  auto after = [](uint32_t s, const Group &g) { return s < g.first_segment; };
  const Group &g = *(std::upper_bound(groups.begin(), groups.end(), segment, after) - 1);
  char text[96];
  snprintf(text, sizeof text, "thread %u of threadgroup (%u,%u,%u)", thread, g.position[0], g.position[1],
           g.position[2]);
  return text;
}

std::string Checker::self() const { return thread_at(groups.back().first_segment, running_thread()); }

// Ends the thread and the dispatch.
void Checker::stop(const std::string &what) {
  if (library.error.empty()) // lanes that had already started also get here
    library.error = kernel + ": out of bounds: " + what;
  wait_as(State::Done);
  abort();
}
