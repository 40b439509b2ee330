// The state of one library: its kernels, its function constants, the threadgroup memory in use, errors
// and warnings.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "abi.h"

// A threadgroup variable, or threadgroup memory whose length the host has set. Each has its own slot in
// the arena, far from the others, so that an access out of bounds does not reach another variable.
struct Variable {
  std::string name;
  char *data;
  size_t size;
};
constexpr size_t SLOT = 128 * 1024, SLOTS = 64, BEFORE_VARIABLE = 4096;

struct Library {
  std::map<std::string, sim_kernel> kernels;
  std::vector<sim_constant> constants;
  std::string error, warnings;
  std::set<std::string> warned; // subjects of warnings so far

  int order = 0;
  uint64_t random_state = 1;

  // Threadgroup memory used by the running threadgroup, and its variables by key.
  char *arena = nullptr; // SLOT * SLOTS bytes
  std::vector<Variable> variables;
  std::map<const void *, size_t> variable_of;

  uint64_t random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
  }
  // Warns once per kernel and subject, however often it happens.
  void warn(const std::string &kernel, const std::string &subject, const std::string &what) {
    if (warned.insert(kernel + ": " + subject).second)
      warnings += kernel + ": " + what + "\n";
  }
  void warn(const std::string &kernel, const std::string &what) { warn(kernel, what, what); }

  char *add_variable(const std::string &name, size_t size);
  size_t threadgroup_memory() const {
    size_t total = 0;
    for (auto &variable : variables)
      total += variable.size;
    return total;
  }
  void forget_threadgroup() {
    variables.clear();
    variable_of.clear();
  }
};

extern Library library;
