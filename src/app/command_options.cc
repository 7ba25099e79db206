// The command lines of `millrace chat`, `millrace top` and `millrace pipeline`.
#include <CLI/CLI.hpp>

#include "app/options.h"

namespace millrace {

void add_chat_options(CLI::App& command, ChatOptions& o) {
  command.add_option("--url,-u", o.url, "Server to talk to")->capture_default_str();
  command.add_option("--api-key", o.api_key, "Key of the server");
  if (command.get_name() == "chat") {
    command.add_option("--model-name,-m", o.model, "Model to ask for, as the server names it; default: its first");
  }
  command.add_option("--system,-s", o.system, "System message to begin with");
  command.add_option("--temperature,-t", o.temperature, "0 = always the likeliest word; default: the server's")
      ->check(CLI::Range(0.0, 2.0));
  command.add_option("--max-tokens,-n", o.max_tokens, "Longest answer; default: what the context holds")
      ->check(CLI::Range(1, 1 << 26));
}

void add_top_options(CLI::App& command, TopOptions& o) {
  command.add_option("--url,-u", o.url, "Server to look at")->capture_default_str();
  command.add_option("--api-key", o.api_key, "Key of the server");
  command.add_option("--model-name,-m", o.model, "Of a server of several models: the one to look at");
  command.add_flag("--once", o.once, "Print one frame and end");
}

void add_pipeline_options(CLI::App& command, PipelineOptions& o) {
  command.add_option("action", o.action, "check: report what is wrong with it, or what it is; draw: make its picture")
      ->required()
      ->check(CLI::IsMember({"check", "draw"}));
  command.add_option("file", o.file, "The pipeline's YAML file")->required();
  command.add_option("--output,-o", o.output, "Where the picture goes; - = standard output")->capture_default_str();
  command.add_option("--format,-f", o.format, "svg or dot (for Graphviz); default: as the output is named")
      ->check(CLI::IsMember({"svg", "dot"}));
}

}  // namespace millrace
