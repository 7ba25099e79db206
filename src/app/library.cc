#include "app/library.h"

#include "app/model_workers.h"
#include "app/text_plan.h"
#include "stages/toys/toys.h"

namespace millrace {

Library make_library() {
  Library library;
  add_toys(library);
  add_model_workers(library);
  // Known by name here, run by the text engine (app/backend.h): typed messages, not payloads.
  for (const std::string_view name : {kGenerateWorker, kDetokenizeWorker}) {
    library.workers[std::string(name)] = [name](const Value&, const Library::WorkerSeat& seat) {
      return Result<std::unique_ptr<Worker>>(
          error(StatusCode::kUnsupported, "stage '{}': {} runs only in text pipelines", seat.stage, name));
    };
  }
  return library;
}

}  // namespace millrace
