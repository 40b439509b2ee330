// Finds the compiled library for a source. No compiler runs here: `setup` has compiled every
// source. A library is identified by its source, byte for byte: $METAL_SIM_SOURCES/NAME.metal is
// compiled to $METAL_SIM_LIBRARIES/libNAME.so.
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include "metal.h"

namespace {
std::map<std::string, CompiledLibrary *> loaded; // by name; never unloaded

std::string read_file(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Name of the file in `folder` that holds this text; empty if none does.
std::string name_of_source(const std::string &folder, const std::string &source) {
  const std::string extension = ".metal";
  std::string name;
  DIR *dir = opendir(folder.c_str());
  while (dirent *entry = dir ? readdir(dir) : nullptr) {
    std::string file = entry->d_name;
    if (file.size() <= extension.size() || file.substr(file.size() - extension.size()) != extension)
      continue;
    if (read_file(folder + "/" + file) == source) {
      name = file.substr(0, file.size() - extension.size());
      break;
    }
  }
  if (dir)
    closedir(dir);
  return name;
}

template <class F> void find_symbol(void *handle, const char *name, F &function) {
  function = (F)dlsym(handle, name);
  if (!function)
    die(std::string("a compiled library lacks ") + name + ": run setup again");
}
} // namespace

CompiledLibrary *library_for(const std::string &source, std::string &error) {
  std::string sources = setting("METAL_SIM_SOURCES", "."), name = name_of_source(sources, source);
  if (name.empty()) {
    error = "no file in METAL_SIM_SOURCES (" + sources + ") has exactly this source: run setup again";
    return nullptr;
  }
  if (loaded.count(name))
    return loaded[name];
  std::string stem = std::string(setting("METAL_SIM_LIBRARIES", ".")) + "/lib" + name, path = stem + ".so";
  // Candle's libraries have no checked version.
  if (is_checked() && access((stem + ".checked.so").c_str(), R_OK) == 0)
    path = stem + ".checked.so";
  if (access(path.c_str(), R_OK) != 0) {
    error = name + ".metal is not compiled: add " + name + " to KERNELS and run setup again";
    return nullptr;
  }
  void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    error = dlerror();
    return nullptr;
  }
  auto *library = new CompiledLibrary();
  library->source_hash = std::hash<std::string>()(source);
  find_symbol(handle, "sim_dispatch", library->dispatch);
  find_symbol(handle, "sim_error", library->error);
  find_symbol(handle, "sim_warnings", library->warnings);
  find_symbol(handle, "sim_set_constant", library->set_constant);
  find_symbol(handle, "sim_running_thread", library->running_thread);
  decltype(&sim_kernel_count) count;
  decltype(&sim_kernel_name) kernel_name;
  decltype(&sim_thread_order) thread_order;
  find_symbol(handle, "sim_kernel_count", count);
  find_symbol(handle, "sim_kernel_name", kernel_name);
  find_symbol(handle, "sim_thread_order", thread_order);
  for (int i = 0; i < count(); i++)
    library->kernels.insert(kernel_name(i));
  thread_order(atoi(setting("METAL_SIM_THREAD_ORDER", "0")), strtoull(setting("METAL_SIM_SEED", "0"), nullptr, 10));
  return loaded[name] = library;
}

bool is_checked() { return strcmp(setting("METAL_SIM_CHECK", "0"), "0") != 0; }

std::string all_warnings() {
  std::string text;
  for (auto &entry : loaded)
    text += entry.second->warnings();
  return text;
}
