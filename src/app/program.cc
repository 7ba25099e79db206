#include "app/program.h"

#include <malloc.h>
#include <signal.h>

#include <CLI/CLI.hpp>

#include "app/bench.h"
#include "app/commands.h"
#include "app/hub_commands.h"
#include "app/quantize.h"
#include "app/split.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

constexpr std::size_t kHelpWidth = 110;  // of a whole line

// Blocks of this size and more go back to the system when they are freed. By itself glibc raises the limit to the
// largest block that was ever freed, and keeps what a model's load used in passing: a fifth of a quantized model.
constexpr int kOwnMappingBytes = 1 << 20;

// CLI11 does not break long descriptions; it indents what follows a line break.
class WrappingFormatter : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    const std::size_t width = kHelpWidth - get_column_width();
    for (std::size_t begin = 0; text.size() - begin > width;) {
      const std::size_t space = text.rfind(' ', begin + width);
      if (space == std::string::npos || space <= begin) break;
      text[space] = '\n';
      begin = space + 1;
    }
    return text;
  }
};

}  // namespace

int run_millrace(int argc, char** argv, AddWorkers add_workers) {
  mallopt(M_MMAP_THRESHOLD, kOwnMappingBytes);
  CLI::App app{"Millrace serves open language models behind an OpenAI-compatible API."};
  app.formatter(std::make_shared<WrappingFormatter>());  // subcommands take it over
  app.set_version_flag("--version", std::string("millrace ") + kVersion);
  app.require_subcommand(1);
  app.footer("Begin with: millrace serve --model DIR, or millrace serve ORG/NAME   then: millrace chat");
  ServeOptions serve;
  StageOptions stage;
  RangeOptions range;
  ChatOptions chat;
  TopOptions top;
  PipelineOptions pipeline;
  InspectOptions inspect;
  QuantizeOptions quantize;
  SplitOptions split;
  BenchOptions bench;
  HubCommandLine hub;
  CLI::App* serve_command = app.add_subcommand("serve", "Serve a model over HTTP");
  hub.add_to(app);
  CLI::App* stage_command = app.add_subcommand("stage", "Run stages of a pipeline that another host serves");
  CLI::App* chat_command = app.add_subcommand("chat", "Talk to a running server in the terminal");
  CLI::App* top_command = app.add_subcommand("top", "Show in the terminal what a running server does");
  CLI::App* pipeline_command = app.add_subcommand("pipeline", "Check or draw a pipeline's file");
  CLI::App* inspect_command =
      app.add_subcommand("inspect", "Say what a model directory holds, or which relays this machine has");
  CLI::App* bench_command = app.add_subcommand("bench", "Measure a server, or a model without one");
  add_serve_options(*serve_command, serve);
  add_stage_options(*stage_command, stage);
  CLI::App* range_command = app.add_subcommand("range", "A child of serve --pp")->group("");
  add_range_options(*range_command, range);
  add_chat_options(*chat_command, chat);
  add_top_options(*top_command, top);
  add_pipeline_options(*pipeline_command, pipeline);
  add_inspect_options(*inspect_command, inspect);
  CLI::App* quantize_command = app.add_subcommand("quantize", "Write a model as a GGUF file");
  add_quantize_options(*quantize_command, quantize);
  CLI::App* split_command = app.add_subcommand("split", "Write a model as one folder for each range of its layers");
  add_split_options(*split_command, split);
  add_bench_options(*bench_command, bench);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    // What is missing is less of a help than the word that was not understood.
    const std::vector<std::string> unknown = app.remaining(true);
    if (unknown.empty()) return app.exit(error), kExitBadInput;
    return app.exit(CLI::ExtrasError(unknown)), kExitBadInput;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitBadInput;
  }
  // A server outlives whoever reads what it says; a command that prints ends with its reader, as in any pipe.
  if (*serve_command || *stage_command || *range_command) ::signal(SIGPIPE, SIG_IGN);
  serve.given = given_options(*serve_command);
  if (*serve_command) return run_serve(serve, add_workers);
  if (const std::optional<int> code = hub.run()) return *code;
  if (*stage_command) return run_stage(stage, add_workers);
  if (*range_command) return run_range(range);
  if (*chat_command) return run_chat(chat);
  if (*top_command) return run_top(top);
  if (*pipeline_command) return run_pipeline(pipeline, add_workers);
  if (*bench_command) {
    return bench_command->got_subcommand("serve") ? run_bench_serve(bench.serve) : run_bench_offline(bench.offline);
  }
  if (*quantize_command) return run_quantize(quantize);
  if (*split_command) return run_split(split);
  return run_inspect(inspect);
}

}  // namespace millrace
