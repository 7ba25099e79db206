// A setting of the double of libnccl and libcudart (fake_nccl.cc), for one test: a variable of the environment.
//
// Thread safety: one thread.
#pragma once

#include <cstdlib>

namespace millrace::nccl::testing {

class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

}  // namespace millrace::nccl::testing
