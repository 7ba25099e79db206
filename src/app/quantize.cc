#include "app/quantize.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "app/model_source.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/signals.h"
#include "base/log.h"
#include "pipeline/supervisor.h"

namespace millrace {

void add_quantize_options(CLI::App& command, QuantizeOptions& o) {
  command.add_option("input", o.input, "Hugging Face model directory, or a GGUF file")->required();
  command.add_option("output", o.output, "GGUF file to write")->required();
  command.add_option("--type,-t", o.type, "Of the matrices: q8_0 (8.5 bits each), q4_0 (4.5), bf16, f16 or f32")
      ->transform(CLI::IsMember({"q8_0", "q4_0", "bf16", "f16", "f32"}, CLI::ignore_case))
      ->capture_default_str();
  command.add_flag("--overwrite", o.overwrite, "Replace the file where there is one");
}

int run_quantize(const QuantizeOptions& options) {
  log_init("quantize", LogLevel::kWarning);
  const auto source = cached_source(options.input, "");
  if (!source.ok()) return print_error(source.status()), kExitBadInput;
  QuantizeOptions of_source = options;
  of_source.input = source->path;
  const sigset_t signals = block_stop_signals();
  LoadingProgress shown(stderr);
  const Status status = quantize_model(of_source, show_until_signal(shown, "writing the file", signals));
  shown.finish();
  if (!status.ok()) return print_error(status), exit_code_of_writing(status);
  struct stat info {};
  if (::stat(options.output.c_str(), &info) == 0) {
    std::printf("%s: %lld bytes\n", options.output.c_str(), static_cast<long long>(info.st_size));
  }
  return 0;
}

}  // namespace millrace
