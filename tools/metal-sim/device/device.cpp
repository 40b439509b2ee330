// MTLDevice and the objects that it creates: buffers, libraries, queues. Linked as libobjc, which
// objc2 needs.
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "metal.h"

namespace {
const char *DEVICE = "SimMTLDevice";
constexpr uint64_t WORKING_SET = 8ull << 30;

struct ResidencySet : Object {
  size_t count = 0;
};

std::atomic<uint64_t> allocated{0}; // bytes of live buffers
std::atomic<uint64_t> lent{0};      // of these, bytes of host memory

Buffer *make_buffer(size_t length) {
  Buffer *b = make<Buffer>("SimMTLBuffer");
  b->length = length;
  allocated += length;
  b->memory = Guarded::alloc(length);
  if (!b->memory.data)
    die("no memory for a buffer of " + std::to_string(length) + " bytes");
  b->shadow = b->memory.shadow();
  return b;
}

// A buffer over memory that the host owns. The host frees it when `deallocator`, if any, is called.
Buffer *make_borrowed_buffer(char *bytes, size_t length, Block *deallocator) {
  size_t page = size_t(sysconf(_SC_PAGESIZE)); // 16 KiB on Apple's chips
  if (size_t(bytes) % page || length % page)
    die("newBufferWithBytesNoCopy: pointer and length must be multiples of a page");
  Buffer *b = make<Buffer>("SimMTLBuffer");
  b->length = length;
  allocated += length;
  lent += length;
  b->memory.data = bytes;
  if (is_checked())
    b->shadow = mmap(nullptr, length * SHADOW_CELL, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  b->deallocator = deallocator ? _Block_copy(deallocator) : nullptr;
  return b;
}

// Bytes of an MTLDataType.
size_t size_of_type(size_t type) {
  switch (type) {
  case 53: // bool
    return 1;
  case 41: // ushort
    return 2;
  case 3:  // float
  case 29: // int
  case 33: // uint
    return 4;
  case 85: // ulong
    return 8;
  default:
    die("a function constant of MTLDataType " + std::to_string(type));
  }
}

Object *make_function(MetalLibrary *library, String *name, const ConstantValues &constants) {
  if (!library->compiled->kernels.count(name->text))
    return nullptr;
  Function *f = make<Function>("SimMTLFunction");
  f->compiled = library->compiled;
  f->name = name->text;
  f->constants = constants;
  return f;
}

void register_descriptors() {
  for (const char *name : {"MTLCaptureDescriptor", "MTLCaptureManager"})
    class_named(name);
  on_class("MTLCompileOptions", "new", [](Object *, Selector) -> Object * { return make<Plain>("MTLCompileOptions"); });
  for (const char *name : {"setMathMode:", "setMathFloatingPointFunctions:", "setFastMathEnabled:"})
    on_instance("MTLCompileOptions", name, ignore);

  if (!getenv("METAL_SIM_MACOS_14")) // residency sets came with macOS 15
    on_class("MTLResidencySetDescriptor", "new",
             [](Object *, Selector) -> Object * { return make<Plain>("MTLResidencySetDescriptor"); });
  const char *set = "SimMTLResidencySet";
  on_instance(set, "allocationCount", [](ResidencySet *s, Selector) -> size_t { return s->count; });
  on_instance(set, "addAllocation:", [](ResidencySet *s, Selector, Object *) { s->count++; });
  on_instance(set, "removeAllocation:", [](ResidencySet *s, Selector, Object *) { s->count--; });
  on_instance(set, "requestResidency", ignore);
  on_instance(set, "commit", ignore);

  const char *constants = "MTLFunctionConstantValues";
  on_class(constants, "new",
           [](Object *, Selector) -> Object * { return make<FunctionConstants>("MTLFunctionConstantValues"); });
  on_instance(constants, "setConstantValue:type:atIndex:",
              [](FunctionConstants *c, Selector, const char *value, size_t type, size_t index) {
                c->values[index].assign(value, size_of_type(type));
              });
}

void register_device() {
  on_instance(DEVICE, "registryID", [](Object *, Selector) -> uint64_t { return 1; });
  on_instance(DEVICE, "name", [](Object *, Selector) -> Object * { return make_string("simulated Metal"); });
  on_instance(DEVICE, "architecture", [](Object *, Selector) -> Object * { return make<Plain>("SimMTLArchitecture"); });
  on_instance("SimMTLArchitecture", "name",
              [](Object *, Selector) -> Object * { return make_string(setting("METAL_SIM_ARCH", "applegpu_g14s")); });
  on_instance(DEVICE, "supportsFamily:", [](Object *, Selector, intptr_t family) -> bool {
    // MTLGPUFamilyApple1 is 1001; a GPU of another vendor supports none of them.
    return 1000 < family && family <= 1000 + atoi(setting("METAL_SIM_APPLE_FAMILY", "8"));
  });
  on_instance(DEVICE, "recommendedMaxWorkingSetSize", [](Object *, Selector) -> uint64_t { return WORKING_SET; });
  on_instance(DEVICE, "currentAllocatedSize", [](Object *, Selector) -> size_t { return metal_sim_allocated(); });
  on_instance(DEVICE, "maxBufferLength", [](Object *, Selector) -> size_t { return WORKING_SET / 2; });
  on_instance(DEVICE, "maxThreadgroupMemoryLength",
              [](Object *, Selector) -> size_t { return SIM_THREADGROUP_MEMORY; });
  on_instance(DEVICE, "hasUnifiedMemory", [](Object *, Selector) -> bool { return true; });
  on_instance(DEVICE, "newResidencySetWithDescriptor:error:", [](Object *, Selector, Object *, Object **) -> Object * {
    return make<ResidencySet>("SimMTLResidencySet");
  });
  on_instance(DEVICE, "newFence", [](Object *, Selector) -> Object * { return make<Plain>("SimMTLFence"); });
  on_instance(DEVICE, "newCommandQueue",
              [](Object *, Selector) -> Object * { return make<Plain>("SimMTLCommandQueue"); });
  on_instance("SimMTLCommandQueue", "device", [](Object *, Selector) -> Object * { return the_device(); });
  on_instance("SimMTLCommandQueue", "setLabel:", ignore);
  on_instance("SimMTLCommandQueue", "addResidencySet:", ignore);
}

void register_buffer() {
  const char *buffer = "SimMTLBuffer";
  on_instance(DEVICE, "newBufferWithLength:options:", [](Object *, Selector, size_t length, size_t options) -> Object * {
    Buffer *b = make_buffer(length);
    b->storage_mode = options >> 4 & 15;
    b->is_fresh = is_checked() || getenv("METAL_SIM_POISON");
    if (b->is_fresh) // Metal guarantees zeros, but a pool of reused buffers does not
      b->memory.poison();
    return b;
  });
  on_instance(DEVICE, "newBufferWithBytes:length:options:",
              [](Object *, Selector, const void *bytes, size_t length, size_t) -> Object * {
                Buffer *b = make_buffer(length);
                memcpy(b->memory.data, bytes, length);
                return b;
              });
  on_instance(DEVICE, "newBufferWithBytesNoCopy:length:options:deallocator:",
              [](Object *, Selector, char *bytes, size_t length, size_t, Block *deallocator) -> Object * {
                return make_borrowed_buffer(bytes, length, deallocator);
              });
  on_instance(buffer, "gpuAddress", [](Buffer *b, Selector) -> uint64_t { return uint64_t(b->memory.data); });
  on_instance(buffer, "device", [](Object *, Selector) -> Object * { return the_device(); });
  on_instance(buffer, "contents", [](Buffer *b, Selector) -> void * {
    if (b->storage_mode == Buffer::PRIVATE)
      die("the contents of a private buffer");
    return b->memory.data;
  });
  on_instance(buffer, "storageMode", [](Buffer *b, Selector) -> size_t { return b->storage_mode; });
  on_instance(buffer, "length", [](Buffer *b, Selector) -> size_t { return b->length; });
  on_instance(buffer, "hash", [](Object *o, Selector) -> size_t { return (size_t)o; });
  on_instance(buffer, "isEqual:", [](Object *a, Selector, Object *b) -> bool { return a == b; });
  on_instance(buffer, "didModifyRange:", ignore);
  on_instance(buffer, "setLabel:", ignore);
}

void register_library() {
  on_instance(DEVICE, "newLibraryWithSource:options:error:",
              [](Object *, Selector, String *source, Object *, Object **error) -> Object * {
                std::lock_guard<std::mutex> guard(device_lock);
                std::string message;
                CompiledLibrary *compiled = library_for(source->text, message);
                if (!compiled) {
                  set_error(error, message);
                  return nullptr;
                }
                MetalLibrary *l = make<MetalLibrary>("SimMTLLibrary");
                l->compiled = compiled;
                return l;
              });
  on_instance("SimMTLLibrary", "newFunctionWithName:", [](MetalLibrary *l, Selector, String *name) -> Object * {
    return make_function(l, name, {});
  });
  on_instance("SimMTLLibrary", "newFunctionWithName:constantValues:error:",
              [](MetalLibrary *l, Selector, String *name, FunctionConstants *c, Object **error) -> Object * {
                Object *f = make_function(l, name, c->values);
                if (!f)
                  set_error(error, "no function " + name->text);
                return f;
              });
}

__attribute__((constructor)) void register_all() {
  register_foundation();
  register_descriptors();
  register_device();
  register_buffer();
  register_library();
  register_pipelines();
  register_commands();
}
} // namespace

const char *setting(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return value ? value : otherwise;
}

size_t max_threads_per_threadgroup() { return strtoul(setting("METAL_SIM_MAX_THREADS", "1024"), nullptr, 10); }

Object *the_device() {
  static Object *device = make<Plain>(DEVICE);
  return retain(device);
}
EXPORT Object *MTLCreateSystemDefaultDevice() { return the_device(); }

Buffer::~Buffer() {
  allocated -= length;
  if (!memory.map)
    lent -= length;
  if (deallocator) {
    ((void (*)(Block *, void *, size_t))(void *)deallocator->invoke)(deallocator, memory.data, length);
    _Block_release(deallocator);
  }
  if (memory.map)
    memory.free();
  else if (shadow)
    munmap(shadow, length * SHADOW_CELL);
}

// For tests: bytes of all live buffers.
EXPORT uint64_t metal_sim_allocated() { return allocated; }

// For tests: bytes of live buffers over host memory.
EXPORT uint64_t metal_sim_lent() { return lent; }

// For tests: the warnings about all kernels run so far, one line each. Valid until the next call.
EXPORT const char *metal_sim_warnings() {
  static std::string text;
  std::lock_guard<std::mutex> guard(device_lock);
  text = all_warnings();
  return text.c_str();
}
