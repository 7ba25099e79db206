#include "stages/loop/rules.h"

#include <exception>
#include <utility>

namespace millrace::loop {
namespace {

template <typename Rule>
Status find_rule(const std::string& name, const std::map<std::string, Rule>& rules, const char* what, Rule& rule) {
  if (name.empty()) return ok_status();
  const auto found = rules.find(name);
  if (found == rules.end()) return error(StatusCode::kNotFound, "{} '{}' is not in the library", what, name);
  rule = found->second;
  return ok_status();
}

// A rule's answer; an exception is an error.
template <typename T, typename Rule>
Result<T> ask(const char* what, const Rule& rule) {
  try {
    Result<T> answer = rule();
    if (!answer.ok()) return answer.status().with_prefix(what);
    return answer;
  } catch (const std::exception& e) {
    return internal_error("{} threw: {}", what, e.what());
  } catch (...) {
    return internal_error("{} threw something that is no exception", what);
  }
}

// The targets that a rule names: some of `all`, each once.
Result<LoopRules::Names> ask_targets(const Library::Route& rule, const LoopRules::Names& all, ReqId id,
                                     const Value& value, const char* what) {
  if (!rule) return all;
  ASSIGN_OR_RETURN(LoopRules::Names answer, ask<LoopRules::Names>(what, [&] { return rule(id, value); }));
  LoopRules::Names targets;
  for (const std::string& name : answer) {
    if (!contains(all, name)) return internal_error("{} names '{}'; wanted some of {}", what, name, listed(all));
    if (contains(targets, name)) return internal_error("{} names '{}' twice", what, name);
    targets.push_back(name);
  }
  return targets;
}

}  // namespace

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text.empty() ? "none" : text;
}

Result<LoopRules> LoopRules::find(const StageSpec& spec, const Library& library) {
  LoopRules rules;
  rules.next_ = spec.next, rules.stream_to_ = spec.stream_to, rules.wait_for_ = spec.wait_for;
  RETURN_IF_ERROR(find_rule(spec.route, library.routes, "route", rules.route_));
  RETURN_IF_ERROR(find_rule(spec.wait_for_rule, library.wait_rules, "wait_for_rule", rules.wait_));
  RETURN_IF_ERROR(find_rule(spec.merge, library.merges, "merge", rules.merge_));
  RETURN_IF_ERROR(find_rule(spec.stream_done_to, library.routes, "stream_done_to", rules.stream_done_to_));
  for (const auto& [target, name] : spec.project_payload) {
    RETURN_IF_ERROR(find_rule(name, library.projections, "project_payload", rules.project_[target]));
  }
  if (!spec.wait_for.empty() && !rules.merge_) {
    return invalid_argument("stage '{}' waits for several payloads and has no merge; wanted one", spec.name);
  }
  return rules;
}

Result<LoopRules::Names> LoopRules::route(ReqId id, const Value& result) const {
  ASSIGN_OR_RETURN(Names targets, ask_targets(route_, next_, id, result, "route"));
  if (targets.empty() && route_) return internal_error("route names none; wanted some of {}", listed(next_));
  return targets;
}

Result<LoopRules::Names> LoopRules::stream_targets(ReqId id, const Value& payload) const {
  return ask_targets(stream_done_to_, stream_to_, id, payload, "stream_done_to");
}

Result<std::optional<LoopRules::Names>> LoopRules::wait_for(ReqId id, const std::string& from,
                                                            const Value& payload) const {
  using Answer = std::optional<Names>;
  if (!wait_) return Answer(wait_for_);
  ASSIGN_OR_RETURN(Answer answer, ask<Answer>("wait_for_rule", [&] { return wait_(id, from, payload); }));
  if (!answer) return answer;
  if (answer->empty()) return internal_error("wait_for_rule names none; wanted some of wait_for");
  for (const std::string& name : *answer) {
    if (contains(wait_for_, name)) continue;
    return internal_error("wait_for_rule names '{}'; wanted some of {}", name, listed(wait_for_));
  }
  return answer;
}

Result<Value> LoopRules::merge(std::map<std::string, Value> payloads) const {
  return ask<Value>("merge", [&] { return merge_(std::move(payloads)); });
}

Result<Lifted> LoopRules::project(const std::string& target, const Value& result) const {
  const auto rule = project_.find(target);
  if (rule == project_.end() || !rule->second) return lift(result);
  ASSIGN_OR_RETURN(const Value projected, ask<Value>("project_payload", [&] { return rule->second(result); }));
  return lift(projected);
}

}  // namespace millrace::loop
