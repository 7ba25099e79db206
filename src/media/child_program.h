// Runs a program that reads untrusted bytes, such as a decoder of videos, in a process of its own: in a sandbox
// (media/child_sandbox.h), with limits of memory, time and output, without files to write to and without this process's
// descriptors and environment.
//
// Thread safety: free functions; each call blocks its thread until the process has ended.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace {

struct ChildLimits {
  std::size_t address_space = std::size_t{2} << 30;  // bytes
  int cpu_seconds = 60;
  std::chrono::milliseconds time{60'000};
  std::function<bool()> cancelled = [] { return false; };  // asked ten times a second
  const char* option = "";                                 // of the time, for the error: " (--some-seconds)"
};

// The path of a program on PATH. kUnsupported: it is not installed; `package`: what has it.
Result<std::string> find_program(const std::string& name, const std::string& package);

// The name of the input for the program: a file that it may read from any position.
inline constexpr char kChildInput[] = "/dev/fd/3";

// Runs `arguments` (the first is the program's path) with `input` as kChildInput, and gives what it prints to
// `on_output` as it comes; an error from there ends the process and is returned. kInvalidArgument: the process failed
// or was over a limit; kCancelled; kInternal, kUnsupported: no sandbox, so it did not run.
Status run_child(const std::vector<std::string>& arguments, std::span<const uint8_t> input, const ChildLimits& limits,
                 const std::function<Status(std::span<const uint8_t>)>& on_output);

}  // namespace millrace
