// Command buffers and encoders. Commands are recorded; `commit` runs them before it returns.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "metal.h"

std::mutex device_lock;

namespace {
const char *COMMAND_BUFFER = "SimMTLCommandBuffer";
const char *COMPUTE_ENCODER = "SimMTLComputeCommandEncoder";
const char *BLIT_ENCODER = "SimMTLBlitCommandEncoder";
constexpr size_t BUFFER_ARGUMENTS = 31, BYTES_LIMIT = 4096;
constexpr size_t CONCURRENT = 1; // MTLDispatchTypeConcurrent

std::map<std::string, uint64_t> dispatch_counts; // by kernel
std::multiset<std::string> kernels_to_fail;         // kernels; see metal_sim_fail_next
uint32_t counted = 0, ordered_until = 0; // sim_launch's clock
const Function *running = nullptr;

void report_fault(int, siginfo_t *info, void *) {
  char text[512];
  uint32_t at[3];
  int length = 0;
  if (running && running->compiled->running_thread(at))
    length = snprintf(text, sizeof text,
                      "metal-sim: out-of-bounds access at %p in kernel %s by thread_position_in_grid (%u,%u,%u)\n",
                      info->si_addr, running->name.c_str(), at[0], at[1], at[2]);
  else
    length = snprintf(text, sizeof text, "metal-sim: fault at %p outside a kernel\n", info->si_addr);
  (void)!write(2, text, length);
  _exit(139);
}

// The functions below run a command. They return an error message, or an empty string.

std::string run_dispatch(const Command &c) {
  const Function &function = *c.pipeline->function;
  auto failing = kernels_to_fail.find(function.name);
  if (failing != kernels_to_fail.end()) {
    kernels_to_fail.erase(failing);
    return function.name + " fails because a test called metal_sim_fail_next";
  }
  sim_buffer buffers[BUFFER_ARGUMENTS] = {};
  for (auto &[index, argument] : c.arguments) {
    if (index >= BUFFER_ARGUMENTS)
      return "buffer index over 30";
    if (const Buffer *b = argument.buffer)
      buffers[index] = {b->memory.data, b->length, argument.offset, b->shadow, b->is_fresh};
    else
      buffers[index] = {(char *)argument.bytes.data(), argument.bytes.size(), 0, nullptr, false};
  }
  uint32_t memory[BUFFER_ARGUMENTS] = {};
  sim_launch launch{};
  size_t memory_total = 0;
  for (auto &[index, length] : c.threadgroup_memory) {
    if (index >= BUFFER_ARGUMENTS)
      return "threadgroup memory index over 30";
    memory[index] = uint32_t(length);
    memory_total += length;
    launch.threadgroup_memory_count = std::max(launch.threadgroup_memory_count, int(index) + 1);
  }
  if (memory_total > SIM_THREADGROUP_MEMORY)
    return function.name + ": threadgroup memory over 32 KiB";
  const size_t grid[3] = {c.grid.width, c.grid.height, c.grid.depth};
  const size_t group[3] = {c.threadgroup.width, c.threadgroup.height, c.threadgroup.depth};
  for (int d = 0; d < 3; d++) {
    launch.grid[d] = uint32_t(grid[d]);
    launch.threadgroup[d] = uint32_t(group[d]);
  }
  launch.grid_is_threads = c.grid_is_threads;
  launch.buffers = buffers;
  launch.buffer_count = BUFFER_ARGUMENTS;
  launch.threadgroup_memory = memory;
  launch.clock = &counted;
  launch.ordered_until = ordered_until;
  sim_traffic traffic{};
  launch.traffic = &traffic;
  for (auto &[id, value] : function.constants)
    function.compiled->set_constant(int(id), value.data(), unsigned(value.size()));
  if (getenv("METAL_SIM_TRACE"))
    fprintf(stderr, "metal-sim: %s grid %zu,%zu,%zu threadgroup %zu,%zu,%zu\n", function.name.c_str(), grid[0], grid[1],
            grid[2], group[0], group[1], group[2]);
  dispatch_counts[function.name]++;
  running = &function;
  int failed = function.compiled->dispatch(function.name.c_str(), &launch);
  running = nullptr;
  if (getenv("METAL_SIM_TRACE") && traffic.read + traffic.written)
    fprintf(stderr, "metal-sim: %s reads %lu bytes (%lu different ones), writes %lu (%lu)\n", function.name.c_str(),
            traffic.read, traffic.read_once, traffic.written, traffic.written_once);
  return failed ? function.compiled->error() : "";
}

std::string run_blit(const Command &c) {
  if (c.destination_offset + c.length > c.destination->length)
    return "blit past the end of its destination";
  char *to = c.destination->memory.data + c.destination_offset;
  if (c.kind == Command::Fill) {
    memset(to, c.value, c.length);
    return "";
  }
  if (c.source_offset + c.length > c.source->length)
    return "blit past the end of its source";
  memmove(to, c.source->memory.data + c.source_offset, c.length);
  return "";
}

// Between two barriers, the commands of a concurrent encoder (Candle's are concurrent) may run in
// any order, so also backwards.
void run_encoder(const std::vector<Command> &commands, std::string &error) {
  bool backwards = !strcmp(setting("METAL_SIM_CONCURRENT", "forward"), "reverse");
  size_t begin = 0;
  while (begin < commands.size()) {
    size_t end = begin;
    while (end < commands.size() && commands[end].kind != Command::Barrier)
      end++;
    ordered_until = ++counted;
    for (size_t i = 0; i < end - begin; i++) {
      const Command &c = commands[backwards ? end - 1 - i : begin + i];
      if (error.empty()) // as on a GPU, commands after an error do not run
        error = c.kind == Command::Dispatch ? run_dispatch(c) : run_blit(c);
    }
    begin = end + 1;
  }
}

void release_arguments(const Command &c) {
  for (auto &entry : c.arguments)
    objc_release(entry.second.buffer);
  objc_release(c.pipeline);
  objc_release(c.source);
  objc_release(c.destination);
}

void commit(CommandBuffer *buffer) {
  std::lock_guard<std::mutex> guard(device_lock);
  for (auto &commands : buffer->encoders)
    run_encoder(commands, buffer->error);
  buffer->status = buffer->error.empty() ? CommandBuffer::Completed : CommandBuffer::Error;
  for (Block *handler : buffer->completion_handlers) {
    handler->invoke(handler, buffer);
    _Block_release(handler);
  }
  buffer->completion_handlers.clear();
  for (auto &commands : buffer->encoders)
    for (auto &command : commands)
      release_arguments(command);
  buffer->encoders.clear();
}

Encoder *make_encoder(CommandBuffer *buffer, const char *class_name, bool is_concurrent) {
  Encoder *e = make<Encoder>(class_name);
  e->is_concurrent = is_concurrent;
  e->command_buffer = retain(buffer);
  e->index = buffer->encoders.size();
  buffer->encoders.emplace_back();
  return e;
}

void record(Encoder *e, const Command &command) {
  if (e->ended)
    die("a command after endEncoding");
  auto &commands = e->command_buffer->encoders[e->index];
  commands.push_back(command);
  if (!e->is_concurrent)
    commands.push_back(Command{Command::Barrier});
}

void record_dispatch(Encoder *e, MTLSize grid, MTLSize threadgroup, bool grid_is_threads) {
  if (!e->pipeline)
    die("a dispatch without a pipeline");
  const std::string &name = e->pipeline->function->name;
  size_t threads = threadgroup.width * threadgroup.height * threadgroup.depth;
  if (!grid.width || !grid.height || !grid.depth || !threads)
    die(name + ": dispatch of an empty grid");
  if (threads > e->pipeline->max_threads)
    die(name + ": " + std::to_string(threads) + " threads are over maxTotalThreadsPerThreadgroup");
  Command c{Command::Dispatch};
  c.pipeline = retain(e->pipeline);
  c.arguments = e->arguments;
  for (auto &entry : c.arguments)
    objc_retain(entry.second.buffer);
  c.threadgroup_memory = e->threadgroup_memory;
  c.grid = grid;
  c.threadgroup = threadgroup;
  c.grid_is_threads = grid_is_threads;
  record(e, c);
}

void record_blit(Encoder *e, const Command &command) {
  objc_retain(command.source);
  objc_retain(command.destination);
  record(e, command);
}

void register_command_buffer() {
  const char *c = COMMAND_BUFFER;
  on_instance("SimMTLCommandQueue", "commandBuffer",
              [](Object *, Selector) -> Object * { return make<CommandBuffer>(COMMAND_BUFFER); });
  on_instance(c, "device", [](Object *, Selector) -> Object * { return the_device(); });
  on_instance(c, "setLabel:", ignore);
  on_instance(c, "enqueue", [](CommandBuffer *b, Selector) {
    if (b->status == CommandBuffer::NotEnqueued)
      b->status = CommandBuffer::Enqueued;
  });
  on_instance(c, "computeCommandEncoder",
              [](CommandBuffer *b, Selector) -> Object * { return make_encoder(b, COMPUTE_ENCODER, false); });
  on_instance(c, "computeCommandEncoderWithDispatchType:", [](CommandBuffer *b, Selector, size_t type) -> Object * {
    return make_encoder(b, COMPUTE_ENCODER, type == CONCURRENT);
  });
  on_instance(c, "blitCommandEncoder",
              [](CommandBuffer *b, Selector) -> Object * { return make_encoder(b, BLIT_ENCODER, false); });
  on_instance(c, "addCompletedHandler:", [](CommandBuffer *b, Selector, Block *f) {
    b->completion_handlers.push_back(_Block_copy(f));
  });
  on_instance(c, "commit", [](CommandBuffer *b, Selector) { commit(b); });
  on_instance(c, "waitUntilCompleted", ignore);
  on_instance(c, "status", [](CommandBuffer *b, Selector) -> size_t { return b->status; });
  on_instance(c, "error",
              [](CommandBuffer *b, Selector) -> Object * { return b->error.empty() ? nullptr : make_error(b->error); });
}

void register_compute_encoder() {
  const char *c = COMPUTE_ENCODER;
  on_instance(c, "setComputePipelineState:", [](Encoder *e, Selector, Pipeline *p) {
    e->pipeline = p;
    e->arguments.clear(); // Metal keeps them; clearing them reveals callers that rely on that
  });
  on_instance(c, "setBuffer:offset:atIndex:", [](Encoder *e, Selector, Buffer *b, size_t offset, size_t index) {
    if (b && offset > b->length)
      die("a buffer's offset is past its end");
    e->arguments[index] = Argument{b, offset, ""};
  });
  on_instance(c, "setBytes:length:atIndex:", [](Encoder *e, Selector, const char *p, size_t length, size_t index) {
    if (length > BYTES_LIMIT)
      die("setBytes over 4096 bytes");
    e->arguments[index] = Argument{nullptr, 0, std::string(p, length)};
  });
  on_instance(c, "setThreadgroupMemoryLength:atIndex:", [](Encoder *e, Selector, size_t length, size_t index) {
    if (length % 16)
      die("a threadgroup memory length that is no multiple of 16");
    e->threadgroup_memory[index] = length;
  });
  on_instance(c, "dispatchThreadgroups:threadsPerThreadgroup:", [](Encoder *e, Selector, MTLSize grid, MTLSize group) {
    record_dispatch(e, grid, group, false);
  });
  on_instance(c, "dispatchThreads:threadsPerThreadgroup:", [](Encoder *e, Selector, MTLSize grid, MTLSize group) {
    record_dispatch(e, grid, group, true);
  });
  on_instance(c, "memoryBarrierWithScope:", [](Encoder *e, Selector, size_t) { record(e, Command{Command::Barrier}); });
}

void register_blit_encoder() {
  on_instance(BLIT_ENCODER, "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
              [](Encoder *e, Selector, Buffer *from, size_t from_offset, Buffer *to, size_t to_offset, size_t length) {
                Command c{Command::Copy};
                c.source = from;
                c.source_offset = from_offset;
                c.destination = to;
                c.destination_offset = to_offset;
                c.length = length;
                record_blit(e, c);
              });
  on_instance(BLIT_ENCODER, "fillBuffer:range:value:", [](Encoder *e, Selector, Buffer *to, NSRange range, uint8_t v) {
    Command c{Command::Fill};
    c.destination = to;
    c.destination_offset = range.location;
    c.length = range.length;
    c.value = v;
    record_blit(e, c);
  });
}
} // namespace

void register_commands() {
  struct sigaction action{};
  action.sa_sigaction = report_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);

  register_command_buffer();
  register_compute_encoder();
  register_blit_encoder();
  for (const char *c : {COMPUTE_ENCODER, BLIT_ENCODER}) {
    // Fences order encoders, which run one after the other here.
    for (const char *name : {"setLabel:", "updateFence:", "waitForFence:", "pushDebugGroup:", "popDebugGroup"})
      on_instance(c, name, ignore);
    on_instance(c, "endEncoding", [](Encoder *e, Selector) { e->ended = true; });
  }
}

// For tests: the next command buffer with this kernel ends in an error at that kernel.
EXPORT void metal_sim_fail_next(const char *kernel) {
  std::lock_guard<std::mutex> guard(device_lock);
  kernels_to_fail.insert(kernel);
}

// For tests: how often a kernel was dispatched; all kernels together if null.
EXPORT uint64_t metal_sim_dispatches(const char *kernel) {
  std::lock_guard<std::mutex> guard(device_lock);
  uint64_t count = 0;
  for (auto &[name, dispatches] : dispatch_counts)
    if (!kernel || name == kernel)
      count += dispatches;
  return count;
}
