// RealtimeSession's part about input audio and responses.
#include "api/content_blocks.h"
#include "api/fields.h"
#include "api/realtime/chat_request.h"
#include "api/realtime/item_fields.h"
#include "api/realtime/limits.h"
#include "api/realtime/members.h"
#include "api/realtime/realtime_format.h"
#include "api/realtime/realtime_session.h"
#include "api/realtime/server_events.h"
#include "base/status.h"
#include "media/data_url.h"

namespace millrace::api {
namespace {

constexpr const char* kBuffer = "input_audio_buffer";

Status check_takes_audio(const ModelFacts& model) {
  if (model.media.audio) return ok_status();
  return error(StatusCode::kUnsupported, "{} is of no use: the model '{}' takes no audio", kBuffer, model.name);
}

}  // namespace

Status RealtimeSession::append_audio(const Json& event) {
  RETURN_IF_ERROR(check_takes_audio(context_.engine.model()));
  RETURN_IF_ERROR(check_members(event, "", {"type", "event_id", "audio"}));
  ASSIGN_OR_RETURN(const std::string text, read_block_string(event, "audio", "event"));
  const auto bytes = decode_base64(text, wire::kMaxMediaBytes);
  if (!bytes.ok()) return bytes.status().with_prefix("audio");
  RETURN_IF_ERROR(share_->check(bytes->size()));
  std::vector<InputAudio::Event> events;
  RETURN_IF_ERROR(input_.append({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, events));
  for (const InputAudio::Event& each : events) RETURN_IF_ERROR(on_turn(each));
  return ok_status();
}

Status RealtimeSession::on_turn(const InputAudio::Event& event) {
  CHECK(config_.turn_detection);  // without it there is no detector
  if (event.speaks) turn_id_ = make_id("item_");
  nlohmann::ordered_json change = server_event(event.speaks ? "input_audio_buffer.speech_started"  //
                                                            : "input_audio_buffer.speech_stopped");
  change[event.speaks ? "audio_start_ms" : "audio_end_ms"] = event.ms;
  change["item_id"] = turn_id_;
  send(change);
  if (event.speaks) {
    if (config_.turn_detection->interrupt_response) cancel("turn_detected");
    return ok_status();
  }
  RETURN_IF_ERROR(take_turn(event.wav));
  if (!config_.turn_detection->create_response) return ok_status();
  if (answer_) {
    turn_waits_ = true;
    return ok_status();
  }
  turn_waits_ = false;
  return respond({.config = config_});
}

Status RealtimeSession::take_turn(std::string wav) {
  ASSIGN_OR_RETURN(RealtimeItem item, spoken_item(std::move(wav), context_.engine.model(), kBuffer));
  if (!turn_id_.empty()) item.id = std::exchange(turn_id_, "");
  RETURN_IF_ERROR(share_->check(item.bytes()));
  nlohmann::ordered_json committed = server_event("input_audio_buffer.committed");
  const std::string previous = conversation_.last_id();
  committed["previous_item_id"] = or_null(previous);
  committed["item_id"] = item.id;
  RETURN_IF_ERROR(conversation_.check(item));
  send(committed);
  const std::string id = item.id;
  RETURN_IF_ERROR(add_item(std::move(item), {}));
  if (config_.transcription) {
    untranscribed_.push_back(id);
    transcribe();
  }
  return ok_status();
}

// The next one, where none is made. Where transcripts are no more wanted, it is left out.
void RealtimeSession::transcribe() {
  const ModelFacts& model = context_.engine.model();
  while (!transcript_ && !untranscribed_.empty() && !draining_) {
    const std::string id = std::move(untranscribed_.front());
    untranscribed_.pop_front();
    const RealtimeItem* item = conversation_.find(id);
    if (!item || item->parts.empty() || !item->parts.front().media || !config_.transcription) continue;
    const PromptItem& audio = *item->parts.front().media;
    transcript_ = std::make_shared<Transcript>(
        Transcript{.item_id = id, .audio_rows = audio.media.rows, .context_length = model.context_length});
    auto format = std::make_unique<TranscriptFormat>(transcript_);
    auto requests = make_transcription(audio, *config_.transcription, model);
    if (!requests.ok()) {
      socket_->send(failed_line(*transcript_, field_error(requests.status())));
      transcript_.reset();
      continue;
    }
    auto stream = socket_->open_stream(client_.label, at_end([transcript = transcript_](RealtimeSession& session) {
                                         session.end_transcript(transcript);
                                       }));
    auto reply = std::make_shared<Reply>(context_, std::move(stream), std::move(format), ReplyOptions{.stream = true});
    reply->start(std::move(*requests), {{make_id("transcription-"), 0, 1}});
  }
}

// A turn that waits is answered then: with a long conversation not on the io thread, which all clients share.
std::function<void()> RealtimeSession::at_end(std::function<void(RealtimeSession&)> end) {
  return [weak = weak_from_this(), &server = context_.server, end = std::move(end)] {
    const auto self = weak.lock();
    if (!self) return;
    if (self->weight() <= kMaxInlineRealtimeBytes) return end(*self);
    server.post_aside([self, end] { end(*self); });
  };
}

void RealtimeSession::end_transcript(const std::shared_ptr<Transcript>& transcript) {
  std::lock_guard lock(mutex_);
  if (transcript_ != transcript || !socket_) return;
  if (!transcript->done) {  // broken off without an end
    socket_->send(failed_line(*transcript, {.http_status = 500, .message = "the transcript was broken off"}));
    transcript->text.clear();
  }
  RealtimeItem* item = conversation_.find(transcript->item_id);
  if (item && !item->parts.empty()) item->parts.front().text = transcript->text;
  transcript_.reset();
  if (draining_ && !answer_) return socket_->close(http::CloseCode::kStopping, "the server stops");
  transcribe();
  count_bytes();
}

Status RealtimeSession::commit_audio(const Json& event) {
  RETURN_IF_ERROR(check_takes_audio(context_.engine.model()));
  RETURN_IF_ERROR(check_members(event, "", {"type", "event_id"}));
  Result<std::string> wav = input_.commit();
  if (!wav.ok()) error_code_ = "input_audio_buffer_commit_empty";
  RETURN_IF_ERROR(wav.status());
  return take_turn(*std::move(wav));
}

Status RealtimeSession::clear_audio(const Json& event) {
  RETURN_IF_ERROR(check_members(event, "", {"type", "event_id"}));
  input_.clear();
  turn_id_.clear();
  send(server_event("input_audio_buffer.cleared"));
  answer_waiting_turn();
  return ok_status();
}

Status RealtimeSession::create_response(const Json& event) {
  RETURN_IF_ERROR(check_members(event, "", {"type", "event_id", "response"}));
  if (answer_) {
    error_code_ = "conversation_already_has_active_response";
    return error(StatusCode::kConflict, "the response {} is under way; wanted response.done of it, or response.cancel",
                 answer_->facts.id);
  }
  ASSIGN_OR_RETURN(const Json* given, read_object(event, "response", ""));
  if (!given) return respond({.config = config_});
  ASSIGN_OR_RETURN(ResponseFields fields, read_response(*given, ordered_event()["response"], client_.dialect,
                                                        context_.engine.model(), config_));
  return respond(std::move(fields));
}

Status RealtimeSession::respond(ResponseFields fields) {
  CHECK(!answer_);  // one at a time
  if (draining_) return error(StatusCode::kUnavailable, "the server stops");
  const ModelFacts& model = context_.engine.model();
  ASSIGN_OR_RETURN(RealtimeRequest request, make_realtime_request(conversation_, fields.config, model));
  answer_ = std::make_shared<RealtimeAnswer>(RealtimeAnswer::Facts{.dialect = client_.dialect,
                                                                   .config = std::move(fields.config),
                                                                   .id = make_id("resp_"),
                                                                   .conversation_id = conversation_id_,
                                                                   .item_id = make_id("item_"),
                                                                   .previous_item_id = conversation_.last_id(),
                                                                   .in_conversation = fields.in_conversation,
                                                                   .metadata = std::move(fields.metadata),
                                                                   .audio_rows = request.audio_rows,
                                                                   .picture_rows = request.picture_rows});
  if (answer_->facts.in_conversation) {
    if (Status status = conversation_.add(answer_->placeholder()); !status.ok()) {
      answer_.reset();
      return status;
    }
  }
  nlohmann::ordered_json created = server_event("response.created");
  created["response"] = answer_->json(nullptr, nullptr);
  send(created);
  const ReplyOptions options{.stream = true};
  auto stream = socket_->open_stream(client_.label, at_end([](RealtimeSession& session) { session.end_response(); }));
  auto reply =
      std::make_shared<Reply>(context_, std::move(stream), std::make_unique<RealtimeFormat>(answer_, model), options);
  reply_ = reply;
  reply->start(std::move(request.requests), {{answer_->facts.id, 0, 1}});
  return ok_status();
}

Status RealtimeSession::cancel_response(const Json& event) {
  RETURN_IF_ERROR(check_members(event, "", {"type", "event_id", "response_id"}));
  std::string id;
  RETURN_IF_ERROR(json_read(event, "response_id", id));
  if (!answer_ || (!id.empty() && id != answer_->facts.id)) {
    error_code_ = "response_cancel_not_active";
    return invalid_argument("response_id is '{}', and no such response is under way", id.substr(0, kShownBytes));
  }
  cancel("client_cancelled");
  return ok_status();
}

// Its end comes through the stream, as every other.
void RealtimeSession::cancel(const char* reason) {
  const auto reply = reply_.lock();
  if (!answer_ || !reply) return;
  answer_->cancel_reason = reason;
  reply->cancel(0, 1);
}

void RealtimeSession::end_response() {
  std::lock_guard lock(mutex_);
  if (!answer_ || !socket_) return;
  if (!answer_->done) {  // broken off without an end of its own
    send(failed_event(*answer_, {.http_status = 500, .message = "the response was broken off"}));
  }
  keep_answer();
  answer_.reset();
  reply_.reset();
  if (draining_ && !transcript_) return socket_->close(http::CloseCode::kStopping, "the server stops");
  if (draining_) return;
  answer_waiting_turn();
  count_bytes();
}

// The answer becomes a part of the conversation, unless the client has deleted its item, or there is none. Calls stand
// behind its first item.
void RealtimeSession::keep_answer() {
  RealtimeItem* first = conversation_.find(answer_->facts.item_id);
  if (!answer_->facts.in_conversation) return;
  if (answer_->items.empty() && first) conversation_.remove(first->id);
  if (answer_->items.empty()) return;
  std::optional<std::string> previous;
  if (first) {
    *first = answer_->items.front();
    previous = first->id;
  }
  for (std::size_t i = 1; i < answer_->items.size(); ++i) {
    const std::string id = answer_->items[i].id;
    if (Status status = conversation_.add(answer_->items[i], previous); !status.ok()) return refuse(status, "");
    previous = id;
  }
}

// Over speech that would have interrupted it no answer begins: the end of that turn is answered, for both.
void RealtimeSession::answer_waiting_turn() {
  if (!turn_waits_ || answer_) return;
  if (config_.turn_detection && config_.turn_detection->interrupt_response && input_.speaks()) return;
  turn_waits_ = false;
  answer_turn();
}

void RealtimeSession::answer_turn() {
  if (Status status = respond({.config = config_}); !status.ok()) refuse(status, "");
}

}  // namespace millrace::api
