#include "app/program.h"

#include <malloc.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "app/bench.h"
#include "app/command_line.h"
#include "app/commands.h"
#include "app/decimal_numbers.h"
#include "app/help.h"
#include "app/hub_commands.h"
#include "app/launch.h"
#include "app/output.h"
#include "app/quantize.h"
#include "app/router/child_arguments.h"
#include "app/router/router.h"
#include "app/run.h"
#include "app/split.h"
#include "media/media_decoder.h"

namespace millrace {
namespace {

// Blocks of this size and more go back to the system when they are freed. By itself glibc raises the limit to the
// largest block that was ever freed, and keeps what a model's load used in passing: a fifth of a quantized model.
constexpr int kMinMappingBytes = 1 << 20;

// The commands of a command line, and their options.
class Commands {
 public:
  void add_to(CLI::App& app) {
    add_serving(app);
    add_clients(app);
    add_tools(app);
  }
  // The exit code of the one that was given.
  int run(AddWorkers add_workers);
  // That one is a server, which outlives the reader of its output.
  bool serves() const { return *serve_ || *stage_ || *range_; }

 private:
  void add_serving(CLI::App& app);
  void add_clients(CLI::App& app);
  void add_tools(CLI::App& app);
  int serve(AddWorkers add_workers);

  ServeOptions serve_options_;
  StageOptions stage_options_;
  RangeOptions range_options_;
  RunOptions run_options_;
  LaunchOptions launch_options_;
  ChatOptions chat_options_;
  TopOptions top_options_;
  PipelineOptions pipeline_options_;
  InspectOptions inspect_options_;
  QuantizeOptions quantize_options_;
  SplitOptions split_options_;
  BenchOptions bench_options_;
  HubCommandLine hub_;
  CLI::App *serve_ = nullptr, *run_ = nullptr, *stage_ = nullptr, *range_ = nullptr, *chat_ = nullptr,
           *launch_ = nullptr, *top_ = nullptr, *pipeline_ = nullptr, *bench_ = nullptr, *quantize_ = nullptr,
           *split_ = nullptr;
};

void Commands::add_serving(CLI::App& app) {
  serve_ = app.add_subcommand("serve", "Serve models over HTTP");
  add_serve_options(*serve_, serve_options_);
  run_ = app.add_subcommand("run", "Chat with a model in the terminal, or answer one prompt");
  add_run_options(*run_, run_options_);
  hub_.add_to(app);
  stage_ = app.add_subcommand("stage", "Run stages of a pipeline that another host serves");
  add_stage_options(*stage_, stage_options_);
  range_ = app.add_subcommand("range", "A child of serve --pp")->group("");
  add_range_options(*range_, range_options_);
}

void Commands::add_clients(CLI::App& app) {
  chat_ = app.add_subcommand("chat", "Talk to a running server in the terminal");
  add_chat_options(*chat_, chat_options_);
  launch_ = app.add_subcommand("launch", "Start a coding agent that uses a running server");
  add_launch_options(*launch_, launch_options_);
  top_ = app.add_subcommand("top", "Show in the terminal what a running server does");
  add_top_options(*top_, top_options_);
}

void Commands::add_tools(CLI::App& app) {
  pipeline_ = app.add_subcommand("pipeline", "Check or draw a pipeline's file");
  add_pipeline_options(*pipeline_, pipeline_options_);
  add_inspect_options(
      *app.add_subcommand("inspect", "Show what a model directory holds, or which relays this machine has"),
      inspect_options_);
  quantize_ = app.add_subcommand("quantize", "Write a model as a GGUF file");
  add_quantize_options(*quantize_, quantize_options_);
  split_ = app.add_subcommand("split", "Write a model as one folder for each range of its layers");
  add_split_options(*split_, split_options_);
  bench_ = app.add_subcommand("bench", "Measure a server, or a model without one");
  add_bench_options(*bench_, bench_options_);
}

int Commands::serve(AddWorkers add_workers) {
  ServeOptions& options = serve_options_;
  options.given = given_options(*serve_);
  options.child_arguments = child_arguments(*serve_);
  // A single model is served by this process itself.
  if (options.models.size() == 1 && !wants_router(options)) options.model.model = options.models.front();
  return run_serve(options, add_workers);
}

int Commands::run(AddWorkers add_workers) {
  // A command that prints ends with its reader, as in any pipe.
  if (serves()) ::signal(SIGPIPE, SIG_IGN);
  if (*serve_) return serve(add_workers);
  if (*run_) {
    run_options_.given = given_options(*run_);
    return run_run(run_options_);
  }
  if (const std::optional<int> code = hub_.run()) return *code;
  if (*stage_) return run_stage(stage_options_, add_workers);
  if (*range_) return run_range(range_options_);
  if (*chat_) return run_chat(chat_options_);
  if (*launch_) return run_launch(launch_options_);
  if (*top_) return run_top(top_options_);
  if (*pipeline_) return run_pipeline(pipeline_options_, add_workers);
  if (*bench_) {
    return bench_->got_subcommand("serve") ? run_bench_serve(bench_options_.serve)
                                           : run_bench_offline(bench_options_.offline);
  }
  if (*quantize_) return run_quantize(quantize_options_);
  if (*split_) return run_split(split_options_);
  return run_inspect(inspect_options_);
}

}  // namespace

int run_millrace(int argc, char** argv, AddWorkers add_workers) {
  // In a sandbox, once for each file: before anything else is made.
  if (argc > 1 && std::string_view(argv[1]) == kDecodeMediaCommand) decode_media({argv + 2, argv + argc});
  open_standard_streams();
  mallopt(M_MMAP_THRESHOLD, kMinMappingBytes);
  CLI::App app{"Millrace serves open language models behind an OpenAI-compatible API.", "millrace"};
  app.formatter(help_formatter());  // subcommands take it over
  app.set_version_flag("--version", std::string("millrace ") + kVersion);
  app.require_subcommand(1);
  app.footer(
      "Begin with: millrace run MODEL, or millrace serve MODEL: a folder, a GGUF file or ORG/NAME of a hub.\n"
      "millrace COMMAND --help has options and examples. An option --some-name is also the variable\n"
      "MILLRACE_SOME_NAME, and a line 'some-name: VALUE' of the file that --config names.");
  Commands commands;
  commands.add_to(app);
  add_config_options(app);
  want_decimal_numbers(app);
  add_examples(app);
  if (const std::optional<int> code = parse_command_line(app, argc, argv)) return exit_code_after_output(*code);
  const int code = commands.run(add_workers);
  return commands.serves() ? code : exit_code_after_output(code);
}

}  // namespace millrace
