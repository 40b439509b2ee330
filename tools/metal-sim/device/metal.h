// The Metal objects that Candle uses, and how the files of this folder share them.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../runtime/abi.h"
#include "../runtime/guarded.h"
#include "objc.h"

// Passed by value in messages.
struct MTLSize {
  size_t width, height, depth;
};
struct NSRange {
  size_t location, length;
};

struct String : Object {
  std::string text;
};
struct Array : Object {
  std::vector<Object *> items;
  ~Array();
};
String *make_string(const std::string &);
// Sets the caller's NSError; does nothing if `error` is null.
void set_error(Object **error, const std::string &message);
Object *make_error(const std::string &message);

struct Buffer : Object {
  Guarded memory;
  static constexpr size_t PRIVATE = 2; // MTLStorageModePrivate
  size_t length = 0, storage_mode = 0;
  bool is_fresh = false;        // made without contents
  void *shadow = nullptr;       // shadow memory of the checked mode
  Block *deallocator = nullptr; // called when a buffer over host memory is freed
  ~Buffer();
};

// A library that `setup` compiled: its functions of runtime/abi.h, and its kernels.
struct CompiledLibrary {
  decltype(&sim_dispatch) dispatch;
  decltype(&sim_error) error;
  decltype(&sim_warnings) warnings;
  decltype(&sim_set_constant) set_constant;
  decltype(&sim_running_thread) running_thread;
  std::set<std::string> kernels;
  size_t source_hash = 0;
};
typedef std::map<size_t, std::string> ConstantValues; // bytes by index
struct FunctionConstants : Object {
  ConstantValues values;
};
struct MetalLibrary : Object {
  CompiledLibrary *compiled = nullptr;
};
struct Function : Object {
  CompiledLibrary *compiled = nullptr;
  std::string name;
  ConstantValues constants;
};
struct Pipeline : Object {
  Function *function = nullptr;
  size_t max_threads = 0;
  ~Pipeline() { objc_release(function); }
};

// A buffer at an offset, or bytes that were copied into the command.
struct Argument {
  Buffer *buffer = nullptr;
  size_t offset = 0;
  std::string bytes;
};
struct Command {
  enum Kind { Dispatch, Barrier, Copy, Fill } kind;
  // Dispatch
  Pipeline *pipeline = nullptr;
  std::map<size_t, Argument> arguments;
  std::map<size_t, size_t> threadgroup_memory;
  MTLSize grid{}, threadgroup{};
  bool grid_is_threads = false;
  // Copy, Fill
  Buffer *source = nullptr, *destination = nullptr;
  size_t source_offset = 0, destination_offset = 0, length = 0;
  int value = 0;
};
struct CommandBuffer : Object {
  enum Status {
    NotEnqueued = 0,
    Enqueued = 1,
    Completed = 4,
    Error = 5
  } status = NotEnqueued; // MTLCommandBufferStatus
  std::vector<std::vector<Command>> encoders;
  std::vector<Block *> completion_handlers;
  std::string error;
};
struct Encoder : Object {
  CommandBuffer *command_buffer = nullptr;
  size_t index = 0;
  Pipeline *pipeline = nullptr;
  std::map<size_t, Argument> arguments;
  std::map<size_t, size_t> threadgroup_memory;
  bool ended = false, is_concurrent = false;
  ~Encoder() { objc_release(command_buffer); }
};

// Held while a command buffer runs or a library is loaded: one at a time.
extern std::mutex device_lock;

// An environment variable, or its default.
const char *setting(const char *name, const char *otherwise);
size_t max_threads_per_threadgroup();
// METAL_SIM_CHECK: whether the memory accesses of our kernels are checked.
bool is_checked();

// The library compiled from this source; null, with the reason in `error`, if there is none. The
// caller must hold device_lock.
CompiledLibrary *library_for(const std::string &source, std::string &error);
// Lines of sim_warnings() of all loaded libraries. The caller must hold device_lock.
std::string all_warnings();

void register_foundation();
void register_pipelines();
void register_commands();
EXPORT uint64_t metal_sim_allocated();
// Retained for the caller.
Object *the_device();
