#include "load/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"

namespace millrace::load {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPollMs = 50;  // between two looks at deadlines and progress
constexpr std::size_t kMaxErrorBytes = 300;

int64_t since_us(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
}

std::string error_of(const Json& body) {
  std::string message;
  if (const Json* error = body.is_object() ? json_find(body, "error") : nullptr) {
    if (error->is_object()) (void)json_read(*error, "message", message);
    if (error->is_string()) message = error->get<std::string>();
  }
  return message;
}

std::string error_of(const std::string& body) {
  const Result<Json> json = parse_json(body);
  const std::string message = json.ok() ? error_of(*json) : "";
  return (message.empty() ? body : message).substr(0, kMaxErrorBytes);
}

// The word after `"key":`, white space skipped; empty where there is none.
std::string_view after_key(std::string_view event, std::string_view key) {
  std::size_t at = event.find(key);
  if (at == std::string_view::npos) return {};
  at = event.find_first_not_of(" ", at + key.size());
  return at == std::string_view::npos ? std::string_view{} : event.substr(at);
}

// What is read of one streamed answer.
class Answer {
 public:
  Answer(Outcome& outcome, Clock::time_point start) : outcome_(outcome), start_(start) {}

  bool on_event(std::string_view event) {
    if (event == "[DONE]") {
      done_ = true;
      return true;
    }
    if (event.starts_with("{\"error\"")) {
      outcome_.error = error_of(std::string(event));
      return false;
    }
    if (holds_text(event)) {
      const int64_t now = since_us(start_);
      if (outcome_.first_us < 0) {
        outcome_.first_us = now;
      } else {
        outcome_.gaps_us.push_back(static_cast<int32_t>(std::min<int64_t>(now - last_us_, INT32_MAX)));
      }
      last_us_ = now;
      ++events_;
    }
    if (after_key(event, "\"usage\":").starts_with('{')) read_usage(event);
    return true;
  }

  void finish() {
    outcome_.end_us = since_us(start_);
    outcome_.answer_tokens = counted_ > 0 ? counted_ : events_;
    if (outcome_.error.empty() && !done_) outcome_.error = "the stream ended without [DONE]";
  }

 private:
  void read_usage(std::string_view event) {
    const Result<Json> json = parse_json(event);
    if (!json.ok() || !json->is_object()) return;
    const Json* usage = json_find(*json, "usage");
    if (usage == nullptr || !usage->is_object()) return;
    (void)json_read(*usage, "completion_tokens", counted_);
    (void)json_read(*usage, "prompt_tokens", outcome_.prompt_tokens);
  }

  Outcome& outcome_;
  const Clock::time_point start_;
  int64_t last_us_ = 0, events_ = 0, counted_ = 0;
  bool done_ = false;
};

class Generator {
 public:
  Generator(const GeneratorOptions& options, std::string model, const Workload& workload)
      : options_(options), model_(std::move(model)), workload_(workload), outcomes_(workload.requests.size()) {}

  std::vector<Outcome> run(const Progress& progress) {
    const int clients = std::min<int>(options_.clients, static_cast<int>(workload_.requests.size()));
    std::vector<Connection> connections(static_cast<std::size_t>(clients));
    std::vector<std::thread> threads;
    for (Connection& connection : connections) {
      connection.client = std::make_unique<http::Client>(options_.url, options_.api_key);
      threads.emplace_back([this, &connection] { work(connection); });
    }
    poll_deadlines(connections, progress);
    for (std::thread& thread : threads) thread.join();
    return std::move(outcomes_);
  }

 private:
  struct Connection {
    std::unique_ptr<http::Client> client;
    std::atomic<int64_t> deadline_us{INT64_MAX};
  };

  void poll_deadlines(std::vector<Connection>& connections, const Progress& progress) {
    const auto all = static_cast<int64_t>(outcomes_.size());
    while (done_.load() < all) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
      const int64_t now = since_us(start_);
      for (Connection& connection : connections) {
        if (connection.deadline_us.load() < now) connection.client->interrupt();
      }
      if (progress) progress(done_.load());
    }
  }

  void work(Connection& connection) {
    for (std::size_t i = 0; (i = next_.fetch_add(1)) < workload_.requests.size();) {
      const Request& request = workload_.requests[i];
      if (workload_.open_loop) std::this_thread::sleep_until(start_ + std::chrono::microseconds(request.arrival_us));
      Outcome& outcome = outcomes_[i];
      outcome.begin_us = workload_.open_loop ? request.arrival_us : since_us(start_);
      outcome.prompt_tokens = request.prompt_tokens;
      connection.deadline_us.store(since_us(start_) + options_.timeout_ms * 1000);
      ask(*connection.client, request, outcome);
      connection.deadline_us.store(INT64_MAX);
      done_.fetch_add(1);
    }
  }

  void ask(http::Client& client, const Request& request, Outcome& outcome) {
    Answer answer(outcome, start_);
    http::SseReader reader;
    const auto response = client.post(path(), body(request), [&](std::string_view chunk) {
      return reader.push(chunk, [&](std::string_view event) { return answer.on_event(event); });
    });
    if (!response.ok()) {
      outcome.error = response.status().message();
    } else if (response->status != 200) {
      outcome.error = fmt::format("HTTP {}: {}", response->status, error_of(response->body));
    }
    answer.finish();
  }

  std::string path() const { return options_.chat ? "/v1/chat/completions" : "/v1/completions"; }

  std::string body(const Request& request) const {
    std::string out = "{\"model\":";
    json_append_string(out, model_);
    out += options_.chat ? R"(,"messages":[{"role":"user","content":)" + request.prompt + "}]"
                         : ",\"prompt\":" + request.prompt;
    out += fmt::format(R"(,"max_tokens":{},"temperature":0,"stream":true,"stream_options":{{"include_usage":true}})",
                       request.answer_tokens);
    if (options_.ignore_eos) out += ",\"ignore_eos\":true";
    return out + "}";
  }

  const GeneratorOptions& options_;
  const std::string model_;
  const Workload& workload_;
  std::vector<Outcome> outcomes_;
  const Clock::time_point start_ = Clock::now();
  std::atomic<std::size_t> next_{0};
  std::atomic<int64_t> done_{0};
};

// The first model that the server names.
Result<std::string> first_model(const GeneratorOptions& options) {
  http::Client client(options.url, options.api_key);
  ASSIGN_OR_RETURN(const http::ClientResponse response, client.get("/v1/models"));
  if (response.status != 200) {
    return error(StatusCode::kUnavailable, "GET /v1/models: HTTP {}: {}", response.status, error_of(response.body));
  }
  ASSIGN_OR_RETURN(const Json body, parse_json(response.body));
  const Json* data = body.is_object() ? json_find(body, "data") : nullptr;
  std::string id;
  if (data != nullptr && data->is_array() && !data->empty() && data->front().is_object()) {
    RETURN_IF_ERROR(json_read(data->front(), "id", id));
  }
  if (id.empty()) return invalid_argument("GET /v1/models names no model; wanted one, or --model-name");
  return id;
}

}  // namespace

Result<std::string> model_of(const GeneratorOptions& options) {
  if (!options.model.empty()) return options.model;
  return first_model(options);
}

bool holds_text(std::string_view event) {
  // The reasoning has the first name here and in SGLang, the second in newer versions of vLLM.
  for (const std::string_view key : {"\"text\":", "\"content\":", "\"reasoning_content\":", "\"reasoning\":"}) {
    const std::string_view value = after_key(event, key);
    if (value.size() >= 2 && value[0] == '"' && value[1] != '"') return true;
  }
  return false;
}

Result<std::vector<Outcome>> run(const GeneratorOptions& options, const Workload& workload, const Progress& progress) {
  if (options.clients < 1 || options.clients > kMaxClients) {
    return invalid_argument("clients is {}; wanted 1 to {}", options.clients, kMaxClients);
  }
  if (options.timeout_ms < 1) return invalid_argument("the timeout is {} ms; wanted at least 1", options.timeout_ms);
  ASSIGN_OR_RETURN(std::string model, model_of(options));
  return Generator(options, std::move(model), workload).run(progress);
}

}  // namespace millrace::load
