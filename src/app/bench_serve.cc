// millrace bench serve: requests for any server with an OpenAI-compatible API, and what became of them.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "app/bench.h"
#include "app/output.h"
#include "base/json.h"
#include "load/report.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

// What was asked for, beside the figures it gave.
std::string about(const BenchServeOptions& o) {
  std::string out = "{\"url\":";
  json_append_string(out, o.url);
  out += ",\"workload\":";
  json_append_string(out, o.kind);
  return out + fmt::format(R"(,"clients":{},"rate":{},"requests":{},"prompt_tokens":{},"tokens":{},"groups":{},)"
                           R"("prefix_tokens":{},"seed":{},"chat":{}}})",
                           o.generator.clients, o.workload.rate, o.workload.requests, o.workload.prompt_tokens,
                           o.workload.answer_tokens, o.workload.groups, o.workload.prefix_tokens, o.workload.seed,
                           o.endpoint == "chat");
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[32] = "";
  if (::gmtime_r(&now, &utc) != nullptr) (void)std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

load::PlotTitle plot_title(const BenchServeOptions& o, const std::string& model, const std::string& began) {
  const load::WorkloadOptions& w = o.workload;
  std::string options =
      fmt::format("bench serve --workload {} --clients {} --requests {}", o.kind, o.generator.clients, w.requests);
  if (w.rate > 0) options += fmt::format(" --rate {:g}", w.rate);
  if (o.kind != "trace") options += fmt::format(" --prompt-tokens {} --tokens {}", w.prompt_tokens, w.answer_tokens);
  if (o.kind == "shared-prefix") options += fmt::format(" --groups {} --prefix-tokens {}", w.groups, w.prefix_tokens);
  if (o.kind == "trace") options += fmt::format(" --trace {} --trace-speed {:g}", w.trace, w.trace_speed);
  options += fmt::format(" --endpoint {} --seed {}", o.endpoint, w.seed);
  return {fmt::format("{} at {}, {}", model, o.url, began), std::move(options)};
}

// Before the test, which may take long.
Status check_plot_name(const std::string& path) {
  if (path.empty() || path.ends_with(".svg")) return ok_status();
  return invalid_argument("--plot is '{}'; wanted a name that ends with .svg, of which rsvg-convert makes a PNG", path);
}

// A line that is drawn again while a person looks on; nothing elsewhere.
load::Progress counter(int64_t all) {
  if (::isatty(STDERR_FILENO) == 0) return {};
  return [all](int64_t done) {
    std::fprintf(stderr, "\r%lld of %lld requests%s", static_cast<long long>(done), static_cast<long long>(all),
                 done == all ? "\r\033[K" : "");
    std::fflush(stderr);
  };
}

// Options of another workload would be measured by nothing.
Status check_workload_options(const BenchServeOptions& o) {
  const load::WorkloadOptions& given = o.workload;
  const load::WorkloadOptions none;
  const auto refuse = [&o](const char* option, const char* kind) {
    return invalid_argument("{} has no use with --workload {}; wanted --workload {}", option, o.kind, kind);
  };
  if (o.kind != "trace" && !given.trace.empty()) return refuse("--trace", "trace");
  if (o.kind != "trace" && given.trace_speed != none.trace_speed) return refuse("--trace-speed", "trace");
  if (o.kind == "shared-prefix") return ok_status();
  if (given.groups != none.groups) return refuse("--groups", "shared-prefix");
  if (given.prefix_tokens != none.prefix_tokens) return refuse("--prefix-tokens", "shared-prefix");
  return ok_status();
}

Result<load::WorkloadOptions> workload_options(const BenchServeOptions& o) {
  RETURN_IF_ERROR(check_workload_options(o));
  load::WorkloadOptions wanted = o.workload;
  ASSIGN_OR_RETURN(wanted.kind, load::parse_workload_kind(o.kind));
  wanted.text = wanted.text || o.endpoint == "chat";
  return wanted;
}

Result<std::vector<load::Outcome>> measure(const BenchServeOptions& o, const load::GeneratorOptions& generator,
                                           const load::Workload& workload) {
  if (o.warmup > 0) {
    ASSIGN_OR_RETURN(load::WorkloadOptions before, workload_options(o));
    before.kind = load::WorkloadKind::kRandom;
    before.requests = o.warmup;
    before.rate = 0;
    before.seed = ~before.seed;  // other prompts: the ones that count find nothing of theirs in a cache
    ASSIGN_OR_RETURN(const load::Workload warm, load::make_workload(before));
    ASSIGN_OR_RETURN(const auto ignored, load::run(generator, warm, {}));
    (void)ignored;
  }
  return load::run(generator, workload, counter(static_cast<int64_t>(workload.requests.size())));
}

}  // namespace

int run_bench_serve(const BenchServeOptions& o) {
  const auto url = http::parse_url(o.url);
  if (!url.ok()) return print_error(url.status()), kExitBadInput;
  load::GeneratorOptions generator = o.generator;
  generator.url = *url;
  generator.chat = o.endpoint == "chat";
  generator.timeout_ms = int64_t{o.timeout_s} * 1000;
  if (const Status s = check_plot_name(o.plot); !s.ok()) return print_error(s), kExitBadInput;
  const auto wanted = workload_options(o);
  if (!wanted.ok()) return print_error(wanted.status()), kExitBadInput;
  const auto workload = load::make_workload(*wanted);
  if (!workload.ok()) return print_error(workload.status()), kExitBadInput;
  const auto model = load::model_of(generator);
  if (!model.ok()) return print_error(model.status()), exit_code_of(model.status());
  generator.model = *model;
  const std::string began = now_text();
  const auto outcomes = measure(o, generator, *workload);
  if (!outcomes.ok()) {
    print_error(outcomes.status());
    return outcomes.status().code() == StatusCode::kUnavailable ? 1 : kExitBadInput;
  }
  const load::Summary summary = load::summarize(*outcomes);
  if (o.json != "-") std::fputs(load::to_text(summary).c_str(), stdout);
  if (!o.json.empty()) {
    if (Status s = write_text(o.json, load::to_json(summary, about(o), *outcomes)); !s.ok()) return print_error(s), 1;
  }
  if (!o.plot.empty()) {
    const std::string svg = load::to_svg(summary, plot_title(o, *model, began), *outcomes);
    if (Status s = write_text(o.plot, svg); !s.ok()) return print_error(s), 1;
  }
  return summary.failed == 0 ? 0 : 1;
}

}  // namespace millrace
