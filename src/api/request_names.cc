#include "api/request_names.h"

#include <set>

#include "api/reply.h"

namespace millrace::api {

Status RequestNames::add(const std::vector<Name>& names, const std::shared_ptr<Reply>& reply) {
  CHECK(reply != nullptr);
  std::lock_guard lock(mutex_);
  for (const Name& name : names) {
    if (names_.count(name.text)) {
      return error(StatusCode::kConflict, "rid is '{}', as that of a request under way; wanted another one", name.text);
    }
  }
  for (const Name& name : names) names_.emplace(name.text, Target{reply, name.first, name.count, name.prompt});
  return ok_status();
}

void RequestNames::remove(const std::vector<Name>& names) {
  std::lock_guard lock(mutex_);
  for (const Name& name : names) names_.erase(name.text);
}

std::size_t RequestNames::abort(const std::string& name) {
  Target target;
  {
    std::lock_guard lock(mutex_);
    auto found = names_.find(name);
    if (found == names_.end()) return 0;
    target = found->second;
  }
  auto reply = target.reply.lock();
  return reply ? reply->cancel(target.first, target.count) : 0;
}

std::size_t RequestNames::abort_all() {
  std::set<std::shared_ptr<Reply>> replies;  // each once, whatever names it has
  {
    std::lock_guard lock(mutex_);
    for (const auto& [name, target] : names_) {
      if (auto reply = target.reply.lock()) replies.insert(std::move(reply));
    }
  }
  std::size_t aborted = 0;
  for (const auto& reply : replies) aborted += reply->cancel(0, SIZE_MAX);
  return aborted;
}

std::vector<RequestNames::Listed> RequestNames::list(std::size_t most) const {
  std::vector<std::pair<std::string, Target>> targets;
  {
    std::lock_guard lock(mutex_);
    for (const auto& named : names_) {
      if (targets.size() >= most) break;
      targets.push_back(named);
    }
  }
  std::vector<Listed> out;
  for (const auto& [name, target] : targets) {
    if (auto reply = target.reply.lock()) {
      out.push_back({name, reply->running(target.first, target.count), target.prompt});
    }
  }
  return out;
}

std::size_t RequestNames::size() const {
  std::lock_guard lock(mutex_);
  return names_.size();
}

}  // namespace millrace::api
