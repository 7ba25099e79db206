#include "app/library.h"

#include "app/model_workers.h"

namespace millrace {

Library make_library(const ModelOptions& command_line, AddWorkers add_workers) {
  Library library;
  add_model_workers(library, command_line);
  if (add_workers != nullptr) add_workers(library);
  return library;
}
}  // namespace millrace
