#include "api/realtime/realtime_session.h"

#include "api/content_blocks.h"
#include "api/fields.h"
#include "api/realtime/item_fields.h"
#include "api/realtime/limits.h"
#include "api/realtime/members.h"
#include "api/realtime/server_events.h"
#include "api/sampling_fields.h"
#include "base/ordered_json.h"
#include "base/utf8.h"

namespace millrace::api {
namespace {

Result<std::string> read_item_id(const Json& event) { return read_block_string(event, "item_id", ""); }

// At most `bytes` of it, total characters.
std::string beginning(std::string text, std::size_t bytes) {
  if (bytes >= text.size()) return text;
  while (bytes > 0 && utf8_is_continuation(text[bytes])) --bytes;
  text.resize(bytes);
  return text;
}

Status unknown_item(const std::string& id) {
  return invalid_argument("item_id is '{}'; wanted the id of an item of the conversation", id.substr(0, kShownBytes));
}

}  // namespace

const RealtimeSession::Entry RealtimeSession::kEvents[] = {
    {"session.update", &RealtimeSession::update},
    {"conversation.item.create", &RealtimeSession::create_item},
    {"conversation.item.delete", &RealtimeSession::delete_item},
    {"conversation.item.retrieve", &RealtimeSession::retrieve_item},
    {"conversation.item.truncate", &RealtimeSession::truncate_item},
    {"input_audio_buffer.append", &RealtimeSession::append_audio},
    {"input_audio_buffer.commit", &RealtimeSession::commit_audio},
    {"input_audio_buffer.clear", &RealtimeSession::clear_audio},
    {"response.create", &RealtimeSession::create_response},
    {"response.cancel", &RealtimeSession::cancel_response},
};

RealtimeSession::RealtimeSession(ApiContext& context, std::shared_ptr<http::WebSocket> socket, Client client,
                                 std::unique_ptr<SessionShare> share)
    : context_(context),
      client_(std::move(client)),
      id_(make_id("sess_")),
      conversation_id_(make_id("conv_")),
      socket_(std::move(socket)),
      share_(std::move(share)),
      config_(default_config(context.engine.model())) {
  input_.detect(config_.turn_detection);
}

std::string RealtimeSession::event_text(const nlohmann::ordered_json& event) { return event_line(event); }

void RealtimeSession::on_open() {
  std::lock_guard lock(mutex_);
  nlohmann::ordered_json created = server_event("session.created");
  created["session"] = session_json(config_, client_.dialect, context_.engine.model(), id_, client_.model);
  send(created);
}

// Read before the lock is taken, for which the io thread may wait at the end of a stream.
void RealtimeSession::on_message(std::string text) {
  const Result<Json> event = parse_body(text);
  std::lock_guard lock(mutex_);
  if (!socket_) return;
  if (!event.ok()) return refuse(event.status(), "");
  const Json* type = json_find(*event, "type");
  if (type && (*type == "session.update" || *type == "response.create")) text_ = std::move(text);
  std::string().swap(text);  // its audio is in the event again
  std::string client_event;
  Status status = json_read(*event, "event_id", client_event);
  if (status.ok() && client_event.size() > kMaxRealtimeIdBytes) {
    status = invalid_argument("event_id has {} bytes; wanted at most {}", client_event.size(), kMaxRealtimeIdBytes);
    client_event.clear();
  }
  error_code_.clear();
  if (status.ok()) status = handle(*event);
  if (!status.ok()) refuse(status, client_event);
  std::string().swap(text_);
  count_bytes();
}

// The event under way once more, with its keys in the client's sequence, which templates show of tools.
nlohmann::ordered_json RealtimeSession::ordered_event() const { return parse_ordered_json(text_); }

Status RealtimeSession::handle(const Json& event) {
  ASSIGN_OR_RETURN(const std::string type, read_block_string(event, "type", "event"));
  std::string known;
  for (const Entry& entry : kEvents) {
    if (type == entry.type) return (this->*entry.handle)(event);
    known += (known.empty() ? "" : ", ") + std::string(entry.type);
  }
  return error(StatusCode::kUnsupported, "type is '{}'; wanted one of {}", type.substr(0, kShownBytes), known);
}

void RealtimeSession::count_bytes() {
  share_->set(conversation_.bytes() + input_.bytes() + config_bytes_);
  text_bytes_.store(conversation_.text_bytes() + config_bytes_, std::memory_order_relaxed);
}

void RealtimeSession::refuse(const Status& why, const std::string& client_event) {
  ApiError error = field_error(why);
  if (!error_code_.empty()) error.code = error_code_;
  send(error_event(error, client_event));
}

Status RealtimeSession::update(const Json& event) {
  RETURN_IF_ERROR(check_members(event, "", {"type", "event_id", "session"}));
  ASSIGN_OR_RETURN(const Json* session, read_object(event, "session", ""));
  if (!session) return invalid_argument("session is missing; wanted an object");
  const ModelFacts& model = context_.engine.model();
  SessionConfig changed = config_;
  RETURN_IF_ERROR(update_session(*session, ordered_event()["session"], client_.dialect, model, client_.model, changed));
  const std::size_t bytes = changed.bytes();
  RETURN_IF_ERROR(share_->check(bytes));
  if (changed.turn_detection != config_.turn_detection) input_.detect(changed.turn_detection);
  config_ = std::move(changed);
  config_bytes_ = bytes;
  nlohmann::ordered_json updated = server_event("session.updated");
  updated["session"] = session_json(config_, client_.dialect, model, id_, client_.model);
  send(updated);
  answer_waiting_turn();  // without detection no speech is open
  return ok_status();
}

Status RealtimeSession::add_item(RealtimeItem item, const std::optional<std::string>& previous) {
  RETURN_IF_ERROR(share_->check(item.bytes()));
  const std::string id = item.id;
  const nlohmann::ordered_json shown = item_json(item, client_.dialect);
  RETURN_IF_ERROR(conversation_.add(std::move(item), previous));
  std::vector<const char*> types = {"conversation.item.added", "conversation.item.done"};
  if (client_.dialect.beta) types = {"conversation.item.created"};
  for (const char* type : types) {
    nlohmann::ordered_json added = server_event(type);
    added["previous_item_id"] = or_null(conversation_.previous_of(id));
    added["item"] = shown;
    send(added);
  }
  return ok_status();
}

Status RealtimeSession::create_item(const Json& event) {
  RETURN_IF_ERROR(check_members(event, "", {"type", "event_id", "item", "previous_item_id"}));
  ASSIGN_OR_RETURN(const Json* given, read_object(event, "item", ""));
  if (!given) return invalid_argument("item is missing; wanted an object");
  std::optional<std::string> previous;
  if (json_find(event, "previous_item_id")) RETURN_IF_ERROR(json_read(event, "previous_item_id", previous.emplace()));
  ASSIGN_OR_RETURN(RealtimeItem item, read_item(*given, context_.engine.model()));
  return add_item(std::move(item), previous);
}

Status RealtimeSession::delete_item(const Json& event) {
  RETURN_IF_ERROR(check_members(event, "", {"type", "event_id", "item_id"}));
  ASSIGN_OR_RETURN(const std::string id, read_item_id(event));
  if (!conversation_.remove(id)) return unknown_item(id);
  std::erase(untranscribed_, id);
  nlohmann::ordered_json deleted = server_event("conversation.item.deleted");
  deleted["item_id"] = id;
  send(deleted);
  return ok_status();
}

Status RealtimeSession::retrieve_item(const Json& event) {
  RETURN_IF_ERROR(check_members(event, "", {"type", "event_id", "item_id"}));
  ASSIGN_OR_RETURN(const std::string id, read_item_id(event));
  const RealtimeItem* item = conversation_.find(id);
  if (!item) return unknown_item(id);
  nlohmann::ordered_json retrieved = server_event("conversation.item.retrieved");
  retrieved["item"] = item_json(*item, client_.dialect);
  send(retrieved);
  return ok_status();
}

// What was not played is no part of the conversation: the transcript keeps the share of its characters that the time
// played has of the time spoken.
Status RealtimeSession::truncate_item(const Json& event) {
  RETURN_IF_ERROR(check_members(event, "", {"type", "event_id", "item_id", "content_index", "audio_end_ms"}));
  ASSIGN_OR_RETURN(const std::string id, read_item_id(event));
  RealtimeItem* item = conversation_.find(id);
  if (!item) return unknown_item(id);
  if (item->spoken_samples == 0 || item->parts.empty()) {
    return invalid_argument("item_id is '{}', which this server has not spoken, or not yet to its end", id);
  }
  std::optional<int64_t> index = 0, end;
  RETURN_IF_ERROR(read_integer(event, "content_index", 0, 0, index));
  const int64_t total = item->spoken_samples * 1000 / kRealtimeRate;
  RETURN_IF_ERROR(read_integer(event, "audio_end_ms", 0, total, end));
  if (!end) return invalid_argument("audio_end_ms is missing; wanted an integer in [0, {}]", total);
  std::string& text = item->parts.front().text;
  const double played = total == 0 ? 0 : static_cast<double>(*end) / static_cast<double>(total);
  const auto kept_bytes = static_cast<std::size_t>(played * static_cast<double>(text.size()));
  text = beginning(std::move(text), kept_bytes);
  item->spoken_samples = *end * kRealtimeRate / 1000;
  nlohmann::ordered_json truncated = server_event("conversation.item.truncated");
  truncated["item_id"] = id;
  truncated["content_index"] = 0;
  truncated["audio_end_ms"] = *end;
  send(truncated);
  return ok_status();
}

void RealtimeSession::on_drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
  if (!answer_ && !transcript_ && socket_) socket_->close(http::CloseCode::kStopping, "the server stops");
}

void RealtimeSession::on_close() {
  std::lock_guard lock(mutex_);
  socket_.reset();
  answer_.reset();
  transcript_.reset();
  untranscribed_.clear();
  share_.reset();
  conversation_ = {};
  input_.clear();
}

}  // namespace millrace::api
