#include "api/realtime/turn_detection_fields.h"

#include "api/realtime/limits.h"
#include "api/realtime/members.h"
#include "api/sampling_fields.h"

namespace millrace::api {
namespace {

Status read_ms(const Json& object, const char* key, int64_t low, int64_t high, int64_t& out) {
  std::optional<int64_t> value;
  RETURN_IF_ERROR(read_integer(object, key, low, high, value));
  if (value) out = *value;
  return ok_status();
}

Status read_fields(const Json& fields, TurnDetection& out) {
  RETURN_IF_ERROR(json_read(fields, "threshold", out.threshold));
  if (!(out.threshold >= 0 && out.threshold <= 1)) {
    return invalid_argument("threshold is {}; wanted a number in [0, 1]", out.threshold);
  }
  RETURN_IF_ERROR(read_ms(fields, "prefix_padding_ms", 0, kMaxPaddingMs, out.prefix_padding_ms));
  RETURN_IF_ERROR(read_ms(fields, "silence_duration_ms", kMinSilenceMs, kMaxSilenceMs, out.silence_duration_ms));
  RETURN_IF_ERROR(json_read(fields, "create_response", out.create_response));
  return json_read(fields, "interrupt_response", out.interrupt_response);
}

}  // namespace

Status read_turn_detection(const Json& object, const std::string& where, const ModelFacts& model,
                           std::optional<TurnDetection>& out) {
  const auto given = object.find("turn_detection");
  if (given == object.end()) return ok_status();
  if (given->is_null()) {
    out.reset();
    return ok_status();
  }
  const std::string name = member_name(where, "turn_detection");
  if (!given->is_object()) return invalid_argument("{} is {}; wanted an object or null", name, shown_value(*given));
  if (!model.media.audio) {
    return error(StatusCode::kUnsupported, "{} is set; wanted null: the model '{}' takes no audio", name, model.name);
  }
  RETURN_IF_ERROR(check_value(*given, "type", name, {"server_vad"}));
  RETURN_IF_ERROR(check_members(
      *given, name,
      {"type", "threshold", "prefix_padding_ms", "silence_duration_ms", "create_response", "interrupt_response"}));
  TurnDetection detection = out.value_or(TurnDetection());
  if (Status status = read_fields(*given, detection); !status.ok()) {
    return Status(status.code(), member_name(name, status.message()));
  }
  out = detection;
  return ok_status();
}

nlohmann::ordered_json turn_detection_json(const std::optional<TurnDetection>& detection) {
  if (!detection) return nullptr;
  return {{"type", "server_vad"},
          {"threshold", detection->threshold},
          {"prefix_padding_ms", detection->prefix_padding_ms},
          {"silence_duration_ms", detection->silence_duration_ms},
          {"idle_timeout_ms", nullptr},
          {"create_response", detection->create_response},
          {"interrupt_response", detection->interrupt_response}};
}

Status check_audio_format(const Json& audio, const std::string& where) {
  ASSIGN_OR_RETURN(const Json* format, read_object(audio, "format", where));
  if (!format) return ok_status();
  const std::string name = member_name(where, "format");
  RETURN_IF_ERROR(check_members(*format, name, {"type", "rate"}));
  RETURN_IF_ERROR(check_value(*format, "type", name, {"audio/pcm"}));
  return check_value(*format, "rate", name, {kRealtimeRate});
}

nlohmann::ordered_json audio_format_json() { return {{"type", "audio/pcm"}, {"rate", kRealtimeRate}}; }

}  // namespace millrace::api
