// LoopRules: the functions of the library that one stage's spec names. They are a pipeline author's code: a wrong
// answer or an exception is an error of the request that it was asked for.
//
// Owner: StageLoopParts. Thread safety: the loop's thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "payload/packing.h"
#include "stages/library.h"
#include "stages/stage_spec.h"

namespace millrace::loop {

class LoopRules {
 public:
  // kNotFound: the library does not have one; kInvalidArgument: the spec needs one that it does not name.
  static Result<LoopRules> find(const StageSpec& spec, const Library& library);

  using Names = std::vector<std::string>;
  // Which of `next` get the result: at least one, each once.
  Result<Names> route(ReqId id, const Value& result) const;
  // Which of `stream_to` the request streams to, by its payload; all, without a rule.
  Result<Names> stream_targets(ReqId id, const Value& payload) const;
  bool has_stream_rule() const { return static_cast<bool>(stream_done_to_); }
  // Which of `wait_for` the request waits for; nullopt: not known yet.
  Result<std::optional<Names>> wait_for(ReqId id, const std::string& from, const Value& payload) const;
  Result<Value> merge(std::map<std::string, Value> payloads) const;
  // What `target` gets of the result.
  Result<Lifted> project(const std::string& target, const Value& result) const;

 private:
  Names next_, stream_to_, wait_for_;
  Library::Route route_;
  Library::Route stream_done_to_;
  Library::WaitRule wait_;
  Library::Merge merge_;
  std::map<std::string, Library::Projection> project_;
};

// "'a', 'b'"; "none" of an empty list.
std::string listed(const std::vector<std::string>& names);

}  // namespace millrace::loop
