#include "api/realtime/answer.h"

#include <utility>

#include "api/realtime/server_events.h"
#include "api/realtime/turn_detection_fields.h"
#include "api/reply_format.h"
#include "base/status.h"

namespace millrace::api {

RealtimeItem RealtimeAnswer::placeholder() const {
  return {.id = facts.item_id,
          .role = "assistant",
          .status = "in_progress",
          .spoken = facts.config.audio,
          .spoken_samples = 0,
          .parts = {}};
}

RealtimeItem& RealtimeAnswer::open(RealtimeItem::Kind kind) {
  CHECK(!is_open);
  RealtimeItem item = placeholder();
  if (!items.empty()) item.id = make_id("item_");
  item.kind = kind;
  is_open = true;
  return items.emplace_back(std::move(item));
}

void RealtimeAnswer::close(const std::string& item_status) {
  if (!std::exchange(is_open, false)) return;
  CHECK(!items.empty());
  RealtimeItem& item = items.back();
  item.status = item_status;
  item.parts.push_back({std::exchange(text, {}), {}});
  item.spoken_samples = static_cast<int64_t>(samples);
}

nlohmann::ordered_json RealtimeAnswer::json(const nlohmann::ordered_json& details,
                                            const nlohmann::ordered_json& usage) const {
  nlohmann::ordered_json output = nlohmann::ordered_json::array();
  for (const RealtimeItem& item : items) {
    if (done) output.push_back(item_json(item, facts.dialect));
  }
  nlohmann::ordered_json out = {
      {"id", facts.id},
      {"object", "realtime.response"},
      {"status", status},
      {"status_details", details},
      {"output", std::move(output)},
      {"conversation_id",
       facts.in_conversation ? nlohmann::ordered_json(facts.conversation_id) : nlohmann::ordered_json(nullptr)},
      {std::string(facts.dialect.modalities), modalities_json(facts.config, facts.dialect)},
      {"max_output_tokens", max_tokens_json(facts.config)},
      {"metadata", facts.metadata},
      {"usage", usage}};
  if (!facts.config.audio) return out;
  if (facts.dialect.beta) {
    out["voice"] = facts.config.voice;
    out["output_audio_format"] = "pcm16";
  } else {
    out["audio"] = {{"output", {{"format", audio_format_json()}, {"voice", facts.config.voice}}}};
  }
  return out;
}

nlohmann::ordered_json failed_event(RealtimeAnswer& answer, const ApiError& error) {
  answer.close("incomplete");
  answer.status = "failed";
  answer.done = true;
  const nlohmann::ordered_json shown = {
      {"type", error_type(error.http_status)}, {"code", or_null(error.code)}, {"message", error.message}};
  nlohmann::ordered_json out = server_event("response.done");
  out["response"] = answer.json({{"type", "failed"}, {"error", shown}}, nullptr);
  return out;
}

}  // namespace millrace::api
