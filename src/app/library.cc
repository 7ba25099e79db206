#include "app/library.h"

#include "app/model_workers.h"
#include "stages/toys/toys.h"

namespace millrace {

Library make_library(const ModelOptions& command_line) {
  Library library;
  add_toys(library);
  add_model_workers(library, command_line);
  return library;
}
}  // namespace millrace
