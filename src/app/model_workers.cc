#include "app/model_workers.h"

#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"
#include "api/choices.h"
#include "api/fields.h"
#include "api/value_json.h"
#include "app/loading.h"
#include "app/model_text.h"
#include "app/options.h"
#include "base/nearest.h"
#include "stages/generating/token_values.h"

namespace millrace {
namespace {

using Names = std::vector<std::string_view>;

// Options of the server, not of a stage: these are not among the args of `generate`.
constexpr std::string_view kNotOfStages[] = {"kv-events", "kv-events-anywhere", "log-level"};

// The bounds are those of every endpoint; what is absent ends with the context, as in a conversation.
const api::SamplingDialect& dialect() { return api::kOpenAiDialect; }

Result<std::string> option_text(std::string_view key, const Value& value) {
  if (const auto* text = value.get<std::string>()) return *text;
  if (const auto* integer = value.get<int64_t>()) return fmt::format("{}", *integer);
  if (const auto* number = value.get<double>()) return fmt::format("{}", *number);
  if (const auto* boolean = value.get<bool>()) return std::string(*boolean ? "true" : "false");
  return invalid_argument("{} is a {}; wanted a text, a number or a boolean", key, kind_name(value));
}

// What of `args` the command line knows. `allowed` empty: everything that a stage may have.
Result<ModelOptions> model_options(const Value& args, const Names& allowed) {
  Names known = allowed;
  const std::vector<std::string> names = model_option_names();
  if (known.empty()) {
    for (const std::string& name : names) {
      const bool fits = std::find(std::begin(kNotOfStages), std::end(kNotOfStages), name) == std::end(kNotOfStages);
      if (fits) known.push_back(name);
    }
  }
  ModelOptions out;
  const ValueMap none;
  const ValueMap& map = args.is<ValueMap>() ? *args.get<ValueMap>() : none;
  for (const auto& [key, value] : map) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string nearest(nearest_name(name, known));
      std::replace(nearest.begin(), nearest.end(), '-', '_');
      return invalid_argument("'{}' is unknown (perhaps '{}')", key.substr(0, 64), nearest);
    }
    ASSIGN_OR_RETURN(const std::string text, option_text(key, value));
    RETURN_IF_ERROR(set_model_option(out, name, text).with_prefix(key));
  }
  if (out.model.empty()) return invalid_argument("model is missing; wanted a Hugging Face model directory");
  RETURN_IF_ERROR(validate(ServeOptions{.model = out}));
  return out;
}

struct TokenizeArgs {
  ModelOptions options;
  bool chat = false;
};

Result<TokenizeArgs> tokenize_args(const Value& args) {
  TokenizeArgs out;
  if (const Value* chat = args.find("chat")) {
    if (!chat->is<bool>()) return invalid_argument("chat is a {}; wanted a boolean", kind_name(*chat));
    out.chat = *chat->get<bool>();
  }
  ASSIGN_OR_RETURN(out.options, model_options(without(args, {"chat"}), {"model", "context-length"}));
  return out;
}

// nullopt: there are no args, and the command line's are taken.
using ArgsOptions = std::optional<ModelOptions>;

Result<ArgsOptions> options_of_args(const Value& args, const Names& allowed) {
  if (!args.is<ValueMap>()) return ArgsOptions();
  ASSIGN_OR_RETURN(ModelOptions options, model_options(args, allowed));
  return ArgsOptions(std::move(options));
}

Result<ArgsOptions> generate_args(const Value& args) { return options_of_args(args, {}); }
Result<ArgsOptions> detokenize_args(const Value& args) { return options_of_args(args, {"model"}); }

Result<ModelOptions> or_command_line(ArgsOptions from_args, const ModelOptions& command_line) {
  if (from_args) return std::move(*from_args);
  if (!command_line.model.empty()) return command_line;
  return invalid_argument("its args name no model, and --model is missing; wanted one of them");
}

// ---- payloads in the words of the api

Result<Prompt> chat_prompt(const Value& conversation) {
  std::string text;
  api::append_value(text, conversation);
  ASSIGN_OR_RETURN(const Json body, parse_json(text));
  ASSIGN_OR_RETURN(ChatPrompt prompt, api::read_chat_prompt(body, text));
  return Prompt(std::move(prompt));
}

Result<Prompt> read_prompt(const Value& payload, bool chat) {
  const Value* text = payload.find("text");
  const Value* messages = payload.find("messages");
  const Value* ids = payload.find(kIdsKey);
  if ((text != nullptr) + (messages != nullptr) + (ids != nullptr) != 1) {
    return invalid_argument("the payload has {} of text, messages and ids; wanted one of them",
                            (text != nullptr) + (messages != nullptr) + (ids != nullptr));
  }
  if (messages != nullptr) return chat_prompt(payload);
  if (ids != nullptr) {
    ASSIGN_OR_RETURN(std::vector<int32_t> list, ids_of(payload));
    return Prompt(TokenPrompt{std::move(list)});
  }
  if (!text->is<std::string>()) return invalid_argument("text is a {}; wanted a string", kind_name(*text));
  if (chat) {
    Value message;
    message.set("role", "user");
    message.set("content", *text);
    Value conversation = without(payload, {"text"});
    conversation.set("messages", ValueList{std::move(message)});
    return chat_prompt(conversation);
  }
  TextPrompt prompt{*text->get<std::string>()};
  if (const Value* special = payload.find("add_special_tokens")) {
    if (!special->is<bool>()) {
      return invalid_argument("add_special_tokens is a {}; wanted a boolean", kind_name(*special));
    }
    prompt.add_special_tokens = *special->get<bool>();
  }
  return Prompt(std::move(prompt));
}

// `sampling` has the fields of a request to /v1/completions that say how tokens are drawn and when it ends.
Result<GenerateRequest> read_request(const Value& payload, const ModelFacts& facts) {
  std::string text = "{}";
  if (const Value* sampling = payload.find("sampling")) {
    if (!sampling->is<ValueMap>()) return invalid_argument("sampling is a {}; wanted a map", kind_name(*sampling));
    text.clear();
    api::append_value(text, *sampling);
  }
  ASSIGN_OR_RETURN(const Json body, parse_json(text));
  auto fields = api::read_common(body, facts, dialect());
  if (!fields.ok()) return fields.status().with_prefix("sampling");
  if (fields->sampling.n != 1) {
    return invalid_argument("sampling: n is {}; wanted 1, for a request of a pipeline has one answer",
                            fields->sampling.n);
  }
  std::vector<GenerateRequest> made = api::make_requests({TokenPrompt{}}, {&fields->sampling, 1}, fields->request, 1);
  return std::move(made.front());
}

// ---- the workers

using Made = Result<std::unique_ptr<Worker>>;

Made make_tokenize(const Value& args, const Library::WorkerSeat&, const ModelOptions&) {
  ASSIGN_OR_RETURN(const TokenizeArgs from_args, tokenize_args(args));
  ASSIGN_OR_RETURN(TextSide side, load_text_side({.model = from_args.options}));
  return make_tokenize_worker(PromptEncoder(side.tokenizer, side.chat_template, side.max_prompt_bytes),
                              [chat = from_args.chat](const Value& payload) { return read_prompt(payload, chat); });
}

// The socket has its own context: those of the stage belong to the process.
MakeKvEvents make_kv_events(const ModelOptions& options, uint32_t replica) {
  if (options.kv_events.empty()) return {};
  return [options, replica]() -> Result<std::unique_ptr<KvEventStream>> {
    auto zmq = std::make_shared<ZmqContext>();
    ASSIGN_OR_RETURN(auto socket, EventSocket::bind(*zmq, options.kv_events, options.kv_events_anywhere));
    return std::unique_ptr<KvEventStream>(new KvEventStream(std::move(socket), replica, std::move(zmq)));
  };
}

Made make_generate(const Value& args, const Library::WorkerSeat& seat, const ModelOptions& command_line) {
  ASSIGN_OR_RETURN(ArgsOptions from_args, generate_args(args));
  // What the file says of the stage's resources, where nothing else does.
  const bool has_args = from_args.has_value();
  ASSIGN_OR_RETURN(ModelOptions options, or_command_line(std::move(from_args), command_line));
  const bool threads = has_args ? args.find("threads") != nullptr : options.threads != 0;
  const bool kv_gib = has_args ? args.find("kv_gib") != nullptr : options.kv_gib != 0;
  if (!threads) options.threads = seat.threads;
  if (!kv_gib) options.kv_gib = static_cast<double>(seat.memory_mib) / 1024;
  options = share_of(options, static_cast<int>(seat.nth), seat.of);
  ASSIGN_OR_RETURN(TextSide side, load_text_side({.model = options}));
  return make_generate_worker(
      {.options = scheduler_options(options, side.eos_token_ids),
       .load = [load = make_load_runner(options),
                stage = seat.stage](const LoadProgress& progress) -> Result<std::unique_ptr<Runner>> {
         Result<std::unique_ptr<Runner>> runner = load(progress);
         if (runner.ok()) return runner;
         return runner.status().with_prefix(fmt::format("stage '{}'", stage));
       },
       .tokenizer = side.tokenizer,
       .read_request = [facts = side.facts](const Value& payload) { return read_request(payload, facts); },
       .streams = seat.streams,
       .to_client = seat.to_client,
       .make_kv_events = make_kv_events(options, seat.replica)});
}

Made make_detokenize(const Value& args, const Library::WorkerSeat& seat, const ModelOptions& command_line) {
  ASSIGN_OR_RETURN(ArgsOptions from_args, detokenize_args(args));
  ASSIGN_OR_RETURN(const ModelOptions options, or_command_line(std::move(from_args), command_line));
  ASSIGN_OR_RETURN(auto tokenizer, load_tokenizer(options.model));
  return make_detokenize_worker(std::move(tokenizer), seat);
}

using Make = Made (*)(const Value&, const Library::WorkerSeat&, const ModelOptions&);

template <typename Parse>
void add(Library& library, const char* name, const ModelOptions& command_line, Make make, Parse parse) {
  library.workers[name] = [make, command_line](const Value& args, const Library::WorkerSeat& seat) -> Made {
    Made made = make(args, seat, command_line);
    if (made.ok()) return made;
    return made.status().with_prefix(fmt::format("stage '{}'", seat.stage));
  };
  library.args_checks[name] = [parse](const Value& args) { return parse(args).status(); };
}

}  // namespace

Result<std::optional<ModelOptions>> generate_options(const Value& args) { return generate_args(args); }

ReadPrompt make_read_prompt() {
  return [](const Value& payload) { return read_prompt(payload, false); };
}

ReadRequest make_read_request(const ModelFacts& facts) {
  return [facts](const Value& payload) { return read_request(payload, facts); };
}

void add_model_workers(Library& library, const ModelOptions& command_line) {
  add(library, "tokenize", command_line, make_tokenize, tokenize_args);
  add(library, "generate", command_line, make_generate, generate_args);
  add(library, "detokenize", command_line, make_detokenize, detokenize_args);
  library.short_calls.insert({"generate", "detokenize"});
}

}  // namespace millrace
