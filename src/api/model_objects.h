// The objects of /v1/models, for the clients of OpenAI and of Anthropic alike: each has the members of both.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::api {

struct ListedModel {
  std::string id;          // as it is asked for
  std::string root;        // the model's name, of which `id` may be another one
  int64_t created = 0;     // Unix seconds; 0: not known
  int context_length = 0;  // 0: not known
};

// Without the brace at its end: a server may have more members.
std::string begin_model_object(const ListedModel& model);

// The whole list: ids, and their objects.
std::string model_list_body(const std::vector<std::pair<std::string, std::string>>& objects);

// "2026-11-25T22:01:50Z"
std::string rfc3339_time(int64_t unix_seconds);

}  // namespace millrace::api
