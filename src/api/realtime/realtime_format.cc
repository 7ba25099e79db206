#include "api/realtime/realtime_format.h"

#include "api/audio_output.h"
#include "api/realtime/server_events.h"
#include "base/json.h"
#include "wire/output_parsing.h"

namespace millrace::api {
namespace {

// `status` and `status_details` of how an answer ended.
std::string status_of(const wire::Finish& finish) {
  if (finish.reason == wire::FinishReason::kLength) return "incomplete";
  return finish.reason == wire::FinishReason::kAborted ? "cancelled" : "completed";
}

nlohmann::ordered_json details_of(const std::string& status, const char* cancel_reason) {
  nlohmann::ordered_json out = {{"type", status}};
  if (status == "incomplete") out["reason"] = "max_output_tokens";
  if (status == "cancelled") out["reason"] = cancel_reason;
  return out;
}

}  // namespace

// Of the item, or of its one part.
nlohmann::ordered_json RealtimeFormat::event(std::string_view type, bool of_part) const {
  nlohmann::ordered_json out = server_event(type);
  out["response_id"] = answer_->facts.id;
  if (of_part) out["item_id"] = answer_->items.back().id;
  out["output_index"] = answer_->items.size() - 1;
  if (of_part && answer_->items.back().kind == RealtimeItem::Kind::kMessage) out["content_index"] = 0;
  return out;
}

nlohmann::ordered_json RealtimeFormat::part() const {
  if (answer_->facts.config.audio) return {{"type", "audio"}, {"transcript", answer_->text}};
  return {{"type", "text"}, {"text", answer_->text}};
}

void RealtimeFormat::write(const nlohmann::ordered_json& event, EventWriter& out) const {
  out.begin() += event_line(event);
  out.end();
}

void RealtimeFormat::add_delta(std::string_view type, std::string_view delta, EventWriter& out) const {
  nlohmann::ordered_json delta_event = event(type, true);
  if (answer_->items.back().kind == RealtimeItem::Kind::kCall) delta_event["call_id"] = answer_->items.back().call_id;
  delta_event["delta"] = delta;
  write(delta_event, out);
}

// Where there may be calls, a message begins with its first text.
void RealtimeFormat::opening(const ChoiceState& /*choice*/, EventWriter& out) {
  if (!answer_->facts.config.calls()) open_item(RealtimeItem::Kind::kMessage, out);
}

void RealtimeFormat::open_item(RealtimeItem::Kind kind, EventWriter& out) {
  const nlohmann::ordered_json item = item_json(answer_->open(kind), answer_->facts.dialect);
  write_item(item, out);
  if (kind != RealtimeItem::Kind::kMessage) return;
  nlohmann::ordered_json part_added = event("response.content_part.added", true);
  part_added["part"] = part();
  write(part_added, out);
}

void RealtimeFormat::write_item(const nlohmann::ordered_json& item, EventWriter& out) const {
  nlohmann::ordered_json added = event("response.output_item.added", false);
  added["item"] = item;
  write(added, out);
  if (!answer_->facts.in_conversation) return;
  nlohmann::ordered_json created =
      server_event(answer_->facts.dialect.beta ? "conversation.item.created" : "conversation.item.added");
  created["previous_item_id"] = or_null(answer_->previous_id());
  created["item"] = item;
  write(created, out);
}

void RealtimeFormat::events(const ChoiceState& choice, EventWriter& out) {
  add_text(choice.text, out);
  for (const wire::OutputEvent& each : choice.events) add(each, out);
  if (choice.finish) write_end(choice, out);
}

void RealtimeFormat::add(const wire::OutputEvent& event, EventWriter& out) {
  using Kind = wire::OutputEvent::Kind;
  switch (event.kind) {
    case Kind::kText:
      return add_text(event.text, out);
    case Kind::kReasoning:  // has no event
      return;
    case Kind::kCallBegin:
      return begin_call(event.text, out);
    case Kind::kArguments:
      answer_->text += event.text;
      return add_delta("response.function_call_arguments.delta", event.text, out);
    case Kind::kCallEnd:
      return close_item("completed", out);
  }
}

// The space that stands between calls is no message.
void RealtimeFormat::add_text(std::string_view more, EventWriter& out) {
  if (more.empty()) return;
  if (!answer_->is_open) {
    const std::size_t begin = answer_->items.empty() ? 0 : more.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return;
    more.remove_prefix(begin);
    open_item(RealtimeItem::Kind::kMessage, out);
  }
  answer_->text += more;
  const RealtimeDialect& dialect = answer_->facts.dialect;
  add_delta(answer_->facts.config.audio ? dialect.transcript_delta : dialect.text_delta, more, out);
}

void RealtimeFormat::begin_call(const std::string& name, EventWriter& out) {
  close_item("completed", out);
  RealtimeItem& item = answer_->open(RealtimeItem::Kind::kCall);
  item.name = name;
  item.call_id = make_id("call_");
  write_item(item_json(item, answer_->facts.dialect), out);
}

Status RealtimeFormat::audio(std::span<const float> samples, EventWriter& out) {
  ASSIGN_OR_RETURN(const std::string bytes, encode_output(samples, *model_.speech, AudioFormat::kPcm16));
  answer_->samples += samples.size();
  std::string& line = out.begin();
  std::string head = event_line(event(answer_->facts.dialect.audio_delta, true));
  head.pop_back();
  line += head;
  line += ",\"delta\":";
  append_base64_string(line, bytes);
  line += '}';
  out.end();
  return ok_status();
}

void RealtimeFormat::write_text_done(EventWriter& out) const {
  const bool audio = answer_->facts.config.audio;
  const RealtimeDialect& dialect = answer_->facts.dialect;
  if (audio) write(event(dialect.audio_done, true), out);
  nlohmann::ordered_json text_done = event(audio ? dialect.transcript_done : dialect.text_done, true);
  text_done[audio ? "transcript" : "text"] = answer_->text;
  write(text_done, out);
  nlohmann::ordered_json part_done = event("response.content_part.done", true);
  part_done["part"] = part();
  write(part_done, out);
}

void RealtimeFormat::close_item(const std::string& item_status, EventWriter& out) {
  if (!answer_->is_open) return;
  RealtimeItem& item = answer_->items.back();
  if (item.kind == RealtimeItem::Kind::kMessage) {
    write_text_done(out);
  } else {
    nlohmann::ordered_json done = event("response.function_call_arguments.done", true);
    done["call_id"] = item.call_id;
    done["name"] = item.name;
    done["arguments"] = answer_->text;
    write(done, out);
  }
  answer_->close(item_status);
  const nlohmann::ordered_json shown = item_json(item, answer_->facts.dialect);
  nlohmann::ordered_json item_done = event("response.output_item.done", false);
  item_done["item"] = shown;
  write(item_done, out);
  if (!answer_->facts.in_conversation || answer_->facts.dialect.beta) return;
  nlohmann::ordered_json in_conversation = server_event("conversation.item.done");
  in_conversation["previous_item_id"] = or_null(answer_->previous_id());
  in_conversation["item"] = shown;
  write(in_conversation, out);
}

void RealtimeFormat::write_end(const ChoiceState& choice, EventWriter& out) {
  const std::string status = status_of(*choice.finish);
  close_item(status == "cancelled" ? "incomplete" : status, out);
  answer_->status = status;
  answer_->done = true;
  nlohmann::ordered_json done = server_event("response.done");
  done["response"] = answer_->json(details_of(status, answer_->cancel_reason.load()), usage_json(choice.usage));
  write(done, out);
}

nlohmann::ordered_json RealtimeFormat::usage_json(const wire::Usage& usage) const {
  const int64_t spoken = model_.speech ? audio_tokens(*model_.speech, answer_->samples) : 0;
  const int64_t input = usage.prompt_tokens, output = usage.completion_tokens + spoken;
  const int64_t text = std::max<int64_t>(0, input - answer_->facts.audio_rows - answer_->facts.picture_rows);
  return {{"total_tokens", input + output},
          {"input_tokens", input},
          {"output_tokens", output},
          {"input_token_details",
           {{"text_tokens", text},
            {"audio_tokens", answer_->facts.audio_rows},
            {"image_tokens", answer_->facts.picture_rows},
            {"cached_tokens", usage.cached_tokens}}},
          {"output_token_details", {{"text_tokens", usage.completion_tokens}, {"audio_tokens", spoken}}}};
}

std::string RealtimeFormat::error_event(const ApiError& error) const {
  std::string out = event_line(api::error_event(error, "")) + '\n';
  return out + event_line(failed_event(*answer_, error)) + '\n';
}

http::Response RealtimeFormat::error_response(const ApiError& error) const {
  return {.status = error.http_status, .body = error_event(error)};
}

}  // namespace millrace::api
