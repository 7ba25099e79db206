// YAML to PipelineSpec: the shape of the file. What its parts must be together is checked in spec_check.cc.
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "base/nearest.h"
#include "payload/packing.h"
#include "pipeline/spec_errors.h"
#include "wire/limits.h"

namespace millrace {
namespace {

constexpr std::size_t kMaxQuoted = 64;  // bytes of a user's text in a message

// yaml-cpp counts from 0.
int line_of(const YAML::Node& node) { return node.Mark().line + 1; }

std::string in_quotes(const YAML::Node& node) {
  if (node.IsMap()) return "a map";
  if (node.IsSequence()) return "a list";
  if (!node.IsScalar()) return "nothing";
  return fmt::format("'{}'", node.Scalar().substr(0, kMaxQuoted));
}

template <typename T>
std::optional<T> scalar_as(const YAML::Node& node) {
  T out{};
  // A quoted scalar has the tag "!": it is text, whatever it looks like.
  if (!node.IsScalar() || node.Tag() == "!" || !YAML::convert<T>::decode(node, out)) return std::nullopt;
  return out;
}

// One map of the file: each key is asked for by name, and finish() reports those that were not asked for.
class MapReader {
 public:
  MapReader(const YAML::Node& node, std::string what, SpecErrors& errors)
      : node_(node), what_(std::move(what)), errors_(errors) {
    if (!node.IsMap()) {
      errors_.add(line_of(node), "{} is {}; wanted a map", what_, in_quotes(node));
      return;
    }
    for (const auto& entry : node) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?";
      // yaml-cpp keeps both, while YAML 1.2 (3.2.1.1) wants keys to be unique: without the error the one that counts
      // would depend on the library.
      if (!entries_.emplace(key, entry.second).second) {
        errors_.add(line_of(entry.first), "{} has the key '{}' twice", what_, key.substr(0, kMaxQuoted));
      }
      lines_.emplace(key, line_of(entry.first));
    }
  }

  int line() const { return line_of(node_); }
  const KeyLines& lines() const { return lines_; }
  std::optional<YAML::Node> take(const char* key) {
    // Also where the file does not have it: finish() suggests from this list.
    known_.push_back(key);
    const auto found = entries_.find(key);
    // `key:` with nothing behind it is the same as no key.
    if (found == entries_.end() || found->second.IsNull()) return std::nullopt;
    return found->second;
  }
  void text(const char* key, std::string& out) {
    const auto node = take(key);
    if (!node) return;
    if (!node->IsScalar()) return wrong(key, *node, "text");
    out = node->Scalar();
  }
  void flag(const char* key, bool& out) {
    const auto node = take(key);
    if (!node) return;
    const auto value = scalar_as<bool>(*node);
    if (!value) return wrong(key, *node, "true or false");
    out = *value;
  }
  template <typename T>
  void integer(const char* key, T& out, int64_t least, int64_t most) {
    const auto node = take(key);
    if (!node) return;
    const auto value = scalar_as<int64_t>(*node);
    if (!value || *value < least || *value > most) {
      return wrong(key, *node, fmt::format("an integer from {} to {}", least, most));
    }
    out = static_cast<T>(*value);
  }
  // One name, or a list of them, each once.
  void names(const char* key, std::vector<std::string>& out) {
    const auto node = take(key);
    if (!node) return;
    if (node->IsScalar()) {
      out.push_back(node->Scalar());
      return;
    }
    if (!node->IsSequence()) return wrong(key, *node, "a name or a list of names");
    for (const auto& element : *node) {
      if (!element.IsScalar()) return wrong(key, element, "a list of names");
      if (std::find(out.begin(), out.end(), element.Scalar()) != out.end()) {
        errors_.add(line_of(element), "{} of {} names {} twice", key, what_, in_quotes(element));
        continue;
      }
      out.push_back(element.Scalar());
    }
  }
  void text_map(const char* key, std::map<std::string, std::string>& out) {
    const auto node = take(key);
    if (!node) return;
    if (!node->IsMap()) return wrong(key, *node, "a map of texts");
    for (const auto& entry : *node) {
      if (!entry.second.IsScalar()) return wrong(key, entry.second, "a map of texts");
      if (!out.emplace(entry.first.Scalar(), entry.second.Scalar()).second) {
        errors_.add(line_of(entry.first), "{} of {} has the key {} twice", key, what_, in_quotes(entry.first));
      }
    }
  }
  void finish() {
    for (const auto& [key, value] : entries_) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      errors_.add(lines_[key], "{} has the unknown key '{}'{}", what_, key.substr(0, kMaxQuoted),
                  suggestion(key, known_));
    }
  }
  void wrong(const char* key, const YAML::Node& seen, std::string_view wanted) {
    errors_.add(line_of(seen), "{} of {} is {}; wanted {}", key, what_, in_quotes(seen), wanted);
  }

 private:
  const YAML::Node node_;
  const std::string what_;
  SpecErrors& errors_;
  std::map<std::string, YAML::Node> entries_;
  KeyLines lines_;
  std::vector<std::string_view> known_;
};

// Arguments of a worker, typed as YAML's core schema has it.
class ArgsReader {
 public:
  ArgsReader(const std::string& what, SpecErrors& errors) : what_(what), errors_(errors) {}

  Value read(const YAML::Node& args) {
    const int errors_before = errors_.count();
    Value value = to_value(args, 0);
    if (budget_ == 0) errors_.add(line_of(args), "args of {} unfold to over {} values", what_, kMaxValueNodes);
    // PipelineSpec::hash() has them in this form, and needs it of all: hosts with other args must not match.
    const Status status = lift(value).status();
    if (!status.ok() && errors_.count() == errors_before) {
      errors_.add(line_of(args), "args of {} cannot be compared with those of other hosts: {}", what_,
                  status.message());
    }
    return value;
  }

 private:
  Value to_value(const YAML::Node& node, int depth) {
    if (depth > kMaxValueDepth || budget_ == 0) return {};
    --budget_;
    if (node.IsMap()) return to_map(node, depth);
    if (node.IsSequence()) {
      ValueList list;
      for (const auto& element : node) list.push_back(to_value(element, depth + 1));
      return list;
    }
    if (!node.IsScalar()) return {};
    // From the narrow to the wide, as every integer is a number too, and everything is text.
    if (const auto value = scalar_as<int64_t>(node)) return *value;
    if (const auto value = scalar_as<double>(node)) return *value;
    if (const auto value = scalar_as<bool>(node)) return *value;
    return node.Scalar();
  }

  ValueMap to_map(const YAML::Node& node, int depth) {
    ValueMap map;
    std::set<std::string> keys;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        errors_.add(line_of(entry.first), "args of {} have a key that is {}; wanted text", what_,
                    in_quotes(entry.first));
        continue;
      }
      const std::string& key = entry.first.Scalar();
      // As in MapReader: yaml-cpp keeps both, and Value::find() would show a worker the first one.
      if (!keys.insert(key).second) {
        errors_.add(line_of(entry.first), "args of {} have the key {} twice", what_, in_quotes(entry.first));
        continue;
      }
      map.emplace_back(key, to_value(entry.second, depth + 1));
    }
    return map;
  }

  const std::string& what_;
  SpecErrors& errors_;
  std::size_t budget_ = kMaxValueNodes;  // bounds what aliases can unfold to
};

void read_relay(const YAML::Node& node, const std::string& what, RelaySpec& out, SpecErrors& errors) {
  if (node.IsScalar()) {
    out.backend = node.Scalar();
    return;
  }
  MapReader map(node, what, errors);
  map.text("backend", out.backend);
  map.integer("pool_mib", out.pool_mib, 1, 1 << 20);
  map.integer("credits", out.credits, 1, 1 << 16);
  map.integer("lease_ms", out.lease_ms, 100, 3'600'000);
  map.finish();
}

void read_resources(const YAML::Node& node, const std::string& what, StageResources& out, SpecErrors& errors) {
  MapReader map(node, what, errors);
  map.integer("threads", out.threads, 0, 1024);
  map.integer("memory_mib", out.memory_mib, 0, int64_t{1} << 30);
  map.integer("max_requests", out.max_requests, 1, 1 << 20);
  map.finish();
}

// 0, or a time that no busy machine takes for nothing.
void read_stalled(MapReader& map, int64_t& out) {
  const auto node = map.take("stalled_ms");
  if (!node) return;
  const auto value = scalar_as<int64_t>(*node);
  if (!value || (*value != 0 && (*value < kMinStalledMs || *value > kMaxStalledMs))) {
    return map.wrong("stalled_ms", *node,
                     fmt::format("0 (never) or an integer from {} to {}", kMinStalledMs, kMaxStalledMs));
  }
  out = *value;
}

// The other policies of ReplicaRouter look at a prompt, which a pipeline's inputs need not have.
void read_replica_policy(MapReader& map, ReplicaPolicy& policy) {
  const auto node = map.take("replica_policy");
  if (!node) return;
  const auto parsed = parse_replica_policy(node->IsScalar() ? node->Scalar() : "");
  if (parsed.ok() && (*parsed == ReplicaPolicy::kRoundRobin || *parsed == ReplicaPolicy::kLeastRequests)) {
    policy = *parsed;
  } else {
    map.wrong("replica_policy", *node, "round_robin or least_requests");
  }
}

// Layers [begin, end) of a model.
void read_layers(MapReader& map, std::optional<LayerRange>& out) {
  const auto node = map.take("layers");
  if (!node) return;
  LayerRange range;
  const auto number = [&](std::size_t i, int& layer) {
    const auto value = scalar_as<int>((*node)[i]);
    if (value) layer = *value;
    return value.has_value() && layer >= 0;
  };
  if (!node->IsSequence() || node->size() != 2 || !number(0, range.begin) || !number(1, range.end) ||
      range.begin > range.end) {
    return map.wrong("layers", *node, "two layers from 0 on, the first one and the one behind the last: [0, 3]");
  }
  out = range;
}

StageSpec read_stage(const YAML::Node& node, std::size_t index, const RelaySpec& relay, SpecErrors& errors) {
  StageSpec stage;
  const int errors_before = errors.count();
  stage.line = line_of(node);
  // The pipeline's; a stage's own relay replaces what it names and keeps the rest.
  stage.relay = relay;
  // Messages name the stage; by its position where its name cannot be read.
  std::string what = fmt::format("stage {}", index + 1);
  if (node.IsMap() && node["name"] && node["name"].IsScalar()) {
    what = fmt::format("stage '{}'", node["name"].Scalar().substr(0, kMaxQuoted));
  }
  MapReader map(node, what, errors);
  map.text("name", stage.name);
  map.text("worker", stage.worker);
  map.names("next", stage.next);
  map.flag("terminal", stage.terminal);
  map.text("route", stage.route);
  map.names("wait_for", stage.wait_for);
  map.text("wait_for_rule", stage.wait_for_rule);
  map.text("merge", stage.merge);
  map.names("stream_to", stage.stream_to);
  map.text("stream_done_to", stage.stream_done_to);
  map.flag("can_accept_stream_before_payload", stage.can_accept_stream_before_payload);
  map.text_map("project_payload", stage.project_payload);
  read_layers(map, stage.layers);
  map.text("layers_to", stage.layers_to);
  map.text("prefill_from", stage.prefill_from);
  map.text("encode_from", stage.encode_from);
  // The default, before the key is read: each stage is a process of its own.
  stage.process = stage.name;
  map.text("process", stage.process);
  map.text("host", stage.host);
  map.integer("replicas", stage.replicas, 1, kMaxReplicasOfStage);
  read_replica_policy(map, stage.replica_policy);
  map.text_map("env", stage.env);
  read_stalled(map, stage.stalled_ms);
  if (const auto args = map.take("args")) {
    if (!args->IsMap()) map.wrong("args", *args, "a map");
    stage.args = ArgsReader(what, errors).read(*args);
  }
  if (const auto relay_map = map.take("relay")) read_relay(*relay_map, "relay of " + what, stage.relay, errors);
  if (const auto resources = map.take("resources"))
    read_resources(*resources, "resources of " + what, stage.resources, errors);
  map.finish();
  stage.key_lines = map.lines();
  // check_pipeline() leaves such a stage out: its errors could all follow from this one.
  stage.readable = errors.count() == errors_before;
  return stage;
}

void read_stages(const YAML::Node& list, PipelineSpec& spec, SpecErrors& errors) {
  if (!list.IsSequence() || list.size() == 0 || list.size() > static_cast<std::size_t>(kMaxStages)) {
    errors.add(line_of(list), "stages is {} of {}; wanted a list of 1 to {} stages", in_quotes(list), list.size(),
               kMaxStages);
    return;
  }
  for (std::size_t i = 0; i < list.size(); ++i) spec.stages.push_back(read_stage(list[i], i, spec.relay, errors));
}

PipelineSpec read_pipeline(const YAML::Node& root, SpecErrors& errors) {
  PipelineSpec spec;
  MapReader map(root, "the pipeline", errors);
  map.text("name", spec.name);
  map.text("entry", spec.entry);
  map.text("terminals_rule", spec.terminals_rule);
  map.text_map("env_defaults", spec.env_defaults);
  map.integer("request_timeout_s", spec.request_timeout_s, 1, 7 * 24 * 3600);
  map.integer("max_requests", spec.max_requests, 1, 1 << 20);
  map.integer("lease_ms", spec.lease_ms, kMinLeaseMs, kMaxLeaseMs);
  map.text("control", spec.control);
  map.text("key_file", spec.key_file);
  if (const auto relay = map.take("relay")) read_relay(*relay, "relay of the pipeline", spec.relay, errors);
  // Taken before finish(), which would report it as unknown, and read behind it: `relay` must be known by then.
  const auto stages = map.take("stages");
  map.finish();
  spec.key_lines = map.lines();
  spec.readable = errors.count() == 0;
  if (stages) {
    read_stages(*stages, spec, errors);
  } else {
    errors.add(map.line(), "the pipeline has no stages; wanted a list of 1 to {}", kMaxStages);
  }
  if (spec.entry.empty() && !spec.stages.empty()) spec.entry = spec.stages.front().name;
  return spec;
}

}  // namespace

Result<PipelineSpec> parse_pipeline(std::string_view yaml, const std::string& file, const Library& library) {
  if (yaml.size() > kMaxSpecBytes) {
    return error(StatusCode::kTooLarge, "{}: {} bytes; wanted at most {}", file, yaml.size(), kMaxSpecBytes);
  }
  SpecErrors errors(file);
  PipelineSpec spec;
  try {
    const YAML::Node root = YAML::Load(std::string(yaml));
    if (!root.IsMap())
      return invalid_argument("{}:1: the file is {}; wanted a map with 'stages'", file, in_quotes(root));
    spec = read_pipeline(root, errors);
    // Also for a file that is nested too deeply: yaml-cpp limits its recursion and throws.
  } catch (const YAML::Exception& problem) {
    return invalid_argument("{}:{}: not YAML: {}", file, problem.mark.line + 1, problem.msg);
  }
  check_pipeline(spec, library, errors);
  RETURN_IF_ERROR(errors.status());
  return spec;
}

Result<PipelineSpec> load_pipeline(const std::string& path, const Library& library) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // Of an empty file, `<<` reports a failure.
  const bool empty = file && file.peek() == std::ifstream::traits_type::eof() && !file.bad();
  if (empty && std::filesystem::is_regular_file(path)) {
    return invalid_argument("{}: the file is empty; wanted a pipeline in YAML", path);
  }
  if (!file || !(text << file.rdbuf())) {
    return error(StatusCode::kNotFound, "{}: cannot be read; wanted a pipeline in YAML", path);
  }
  return parse_pipeline(text.str(), path, library);
}

}  // namespace millrace
