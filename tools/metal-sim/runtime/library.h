// What one library holds: its kernels, its function constants, the threadgroup memory in use, and what it has to
// report.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "abi.h"

struct Library {
  std::map<std::string, sim_kernel> kernels;
  std::vector<sim_constant> constants;
  std::string error, warnings;

  int order = 0;
  uint64_t random_state = 1;

  // Threadgroup variables that the running threadgroup has reached, by their key.
  std::map<const void *, size_t> variables;
  std::vector<char> arena = std::vector<char>(1 << 20);
  size_t arena_used = 0;

  uint64_t random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
  }
  void warn(const std::string &kernel, const char *what) {
    std::string line = kernel + ": " + what + "\n";
    if (warnings.find(line) == std::string::npos)
      warnings += line;
  }
  void forget_threadgroup() {
    variables.clear();
    arena_used = 0;
  }
};

extern Library library;
