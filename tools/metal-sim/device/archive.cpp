// Pipelines, and binary archives that store them between runs. Nothing is compiled here, so an
// archive contains only names. It serves to test that the host fills, writes, reads and queries
// archives as Metal requires.
#include <cstdio>
#include <fstream>
#include <memory>

#include "metal.h"

namespace {
const char *DEVICE = "SimMTLDevice";
const char *ARCHIVE = "SimMTLBinaryArchive";
const char *ARCHIVE_DESCRIPTOR = "MTLBinaryArchiveDescriptor";
const char *PIPELINE_DESCRIPTOR = "MTLComputePipelineDescriptor";
const char *PIPELINE = "SimMTLComputePipelineState";
const std::string FIRST_LINE = "metal-sim binary archive";
constexpr size_t FAIL_ON_ARCHIVE_MISS = 1 << 2; // of MTLPipelineOption

std::atomic<uint64_t> pipelines_made{0}, pipelines_archived{0};

struct Archive : Object {
  std::set<std::string> functions;
};
struct ArchiveDescriptor : Object {
  String *url = nullptr;
  ~ArchiveDescriptor() { objc_release(url); }
};
struct PipelineDescriptor : Object {
  Function *function = nullptr;
  Array *archives = nullptr;
  size_t max_threads = 0; // 0: the maximum of the device
  ~PipelineDescriptor() {
    objc_release(function);
    objc_release(archives);
  }
};

template <class T> void assign(T *&field, T *value) {
  objc_retain(value);
  objc_release(field);
  field = value;
}

// Identifies a compiled function: library, name and constants.
std::string fingerprint(const Function &f) {
  std::string text = std::to_string(f.compiled->source_hash) + " " + f.name;
  for (auto &[index, bytes] : f.constants) {
    text += " " + std::to_string(index) + "=";
    for (unsigned char byte : bytes) {
      char hex[3];
      snprintf(hex, sizeof hex, "%02x", byte);
      text += hex;
    }
  }
  return text;
}

Object *open_archive(const ArchiveDescriptor &descriptor, Object **error) {
  auto release = [](Archive *a) { objc_release(a); };
  std::unique_ptr<Archive, decltype(release)> archive(make<Archive>(ARCHIVE), release);
  if (!descriptor.url)
    return archive.release();
  std::ifstream file(descriptor.url->text);
  std::string line;
  if (!std::getline(file, line) || line != FIRST_LINE) {
    set_error(error, descriptor.url->text + (file ? " is no binary archive" : " cannot be read"));
    return nullptr;
  }
  while (std::getline(file, line))
    archive->functions.insert(line);
  return archive.release();
}

bool write_archive(const Archive &archive, const std::string &path, Object **error) {
  std::ofstream file(path);
  file << FIRST_LINE << "\n";
  for (auto &function : archive.functions)
    file << function << "\n";
  file.close();
  if (!file)
    set_error(error, path + " cannot be written");
  return bool(file);
}

bool is_archived(const PipelineDescriptor &d) {
  std::string wanted = fingerprint(*d.function);
  for (size_t i = 0; d.archives && i < d.archives->items.size(); i++)
    if (static_cast<Archive *>(d.archives->items[i])->functions.count(wanted))
      return true;
  return false;
}

Pipeline *make_pipeline(Function *function, size_t max_threads) {
  Pipeline *p = make<Pipeline>(PIPELINE);
  p->function = retain(function);
  p->max_threads = max_threads;
  pipelines_made++;
  return p;
}

Object *make_described_pipeline(const PipelineDescriptor &d, size_t options, Object **error) {
  if (!d.function)
    die("a pipeline descriptor without a function");
  if (d.max_threads > max_threads_per_threadgroup()) {
    set_error(error, d.function->name + ": this GPU has no room for " + std::to_string(d.max_threads) + " threads");
    return nullptr;
  }
  bool archived = is_archived(d);
  if (!archived && (options & FAIL_ON_ARCHIVE_MISS)) {
    set_error(error, d.function->name + " is in none of the binary archives");
    return nullptr;
  }
  pipelines_archived += archived;
  return make_pipeline(d.function, d.max_threads ? d.max_threads : max_threads_per_threadgroup());
}

void register_pipeline_descriptor() {
  const char *c = PIPELINE_DESCRIPTOR;
  on_class(c, "new", [](Object *, Selector) -> Object * { return make<PipelineDescriptor>(PIPELINE_DESCRIPTOR); });
  on_instance(c, "setComputeFunction:", [](PipelineDescriptor *d, Selector, Function *f) { assign(d->function, f); });
  on_instance(c, "setBinaryArchives:", [](PipelineDescriptor *d, Selector, Array *a) { assign(d->archives, a); });
  on_instance(c, "setMaxTotalThreadsPerThreadgroup:",
              [](PipelineDescriptor *d, Selector, size_t threads) { d->max_threads = threads; });
  for (const char *name :
       {"setLabel:", "setThreadGroupSizeIsMultipleOfThreadExecutionWidth:", "setSupportIndirectCommandBuffers:"})
    on_instance(c, name, ignore);
}

void register_pipeline() {
  on_instance(
      DEVICE, "newComputePipelineStateWithFunction:error:", [](Object *, Selector, Function *f, Object **) -> Object * {
        return make_pipeline(f, max_threads_per_threadgroup());
      });
  on_instance(DEVICE, "newComputePipelineStateWithDescriptor:options:reflection:error:",
              [](Object *, Selector, PipelineDescriptor *d, size_t options, Object **, Object **error) -> Object * {
                std::lock_guard<std::mutex> guard(device_lock);
                return make_described_pipeline(*d, options, error);
              });
  on_instance(PIPELINE, "maxTotalThreadsPerThreadgroup",
              [](Pipeline *p, Selector) -> size_t { return p->max_threads; });
  on_instance(PIPELINE, "threadExecutionWidth", [](Object *, Selector) -> size_t { return 32; });
  on_instance(PIPELINE, "device", [](Object *, Selector) -> Object * { return the_device(); });
}

void register_archive() {
  on_class(ARCHIVE_DESCRIPTOR, "new",
           [](Object *, Selector) -> Object * { return make<ArchiveDescriptor>(ARCHIVE_DESCRIPTOR); });
  on_instance(ARCHIVE_DESCRIPTOR, "setUrl:", [](ArchiveDescriptor *d, Selector, String *url) { assign(d->url, url); });
  on_instance(DEVICE, "newBinaryArchiveWithDescriptor:error:",
              [](Object *, Selector, ArchiveDescriptor *d, Object **error) -> Object * {
                return open_archive(*d, error);
              });
  on_instance(ARCHIVE, "addComputePipelineFunctionsWithDescriptor:error:",
              [](Archive *a, Selector, PipelineDescriptor *d, Object **) -> bool {
                if (!d->function)
                  die("a pipeline descriptor without a function");
                std::lock_guard<std::mutex> guard(device_lock);
                a->functions.insert(fingerprint(*d->function));
                return true;
              });
  on_instance(ARCHIVE, "serializeToURL:error:", [](Archive *a, Selector, String *url, Object **error) -> bool {
    std::lock_guard<std::mutex> guard(device_lock);
    return write_archive(*a, url->text, error);
  });
  on_instance(ARCHIVE, "device", [](Object *, Selector) -> Object * { return the_device(); });
  on_instance(ARCHIVE, "setLabel:", ignore);
}
} // namespace

void register_pipelines() {
  register_pipeline_descriptor();
  register_pipeline();
  register_archive();
}

// For tests: how many pipelines were made, and how many of them came from a binary archive.
EXPORT uint64_t metal_sim_pipelines() { return pipelines_made; }
EXPORT uint64_t metal_sim_archived_pipelines() { return pipelines_archived; }
