#include "api/model_objects.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "base/json.h"

namespace millrace::api {

std::string begin_model_object(const ListedModel& model) {
  const std::string id = json_quoted(model.id);
  std::string out =
      fmt::format(R"({{"id":{0},"object":"model","type":"model","display_name":{0},"created":{1},"created_at":"{2}",)"
                  R"("owned_by":"millrace","root":{3},"parent":null)",
                  id, model.created, rfc3339_time(model.created), json_quoted(model.root));
  if (model.context_length > 0) out += fmt::format(R"(,"max_model_len":{})", model.context_length);
  return out;
}

std::string model_list_body(const std::vector<std::pair<std::string, std::string>>& objects) {
  std::string out = R"({"object":"list","data":[)";
  for (const auto& [id, object] : objects) {
    if (out.back() == '}') out += ',';
    out += object;
  }
  const std::string none = "null";
  return out + fmt::format(R"(],"first_id":{},"last_id":{},"has_more":false}})",
                           objects.empty() ? none : json_quoted(objects.front().first),
                           objects.empty() ? none : json_quoted(objects.back().first));
}

std::string rfc3339_time(int64_t unix_seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(unix_seconds));
}

}  // namespace millrace::api
