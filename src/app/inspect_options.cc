// The command line of `millrace inspect`.
#include <CLI/CLI.hpp>

#include "app/options.h"

namespace millrace {

void add_inspect_options(CLI::App& command, InspectOptions& o) {
  auto* model = command.add_option("model", o.model, "Hugging Face model directory, or a GGUF file");
  command.add_flag("--tensors", o.tensors, "List every tensor too");
  CLI::Option* of_split[] = {
      command.add_option("--pp", o.pp, "Show a split of the layers into so many ranges (docs/layers.md)"),
      command.add_option("--split", o.split,
                         "How: even (layers; the default), balanced (bytes that a decode step reads), memory (bytes "
                         "held), or the layers of each range, such as 9,19"),
      command.add_option("--kv-tokens", o.kv_tokens,
                         "Tokens of the KV cache in the table and for memory; default: the model's context"),
      command.add_option("--kv-dtype", o.kv_dtype, "How they are stored; default: f32")
          ->transform(CLI::IsMember({"f32", "bf16", "f16", "int8"}, CLI::ignore_case))};
  CLI::Option* relays =
      command
          .add_flag("--relays", o.relays,
                    "Show instead which transports for tensors this machine has, and why others are absent")
          ->excludes(model);
  for (CLI::Option* option : of_split) relays->excludes(option);
}

}  // namespace millrace
