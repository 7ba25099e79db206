// RealtimeHarness: /v1/realtime in front of the fake engine, and a client of it.
// For tests only. Thread safety: as ApiHarness.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "api/base64.h"
#include "api/realtime/limits.h"
#include "api/testing/speech_harness.h"
#include "http/testing/websocket_client.h"
#include "text/chat_template.h"

namespace millrace::api::testing {

// A client: sends events, reads them one at a time.
class RealtimeClient : public http::testing::WebSocketClient {
 public:
  explicit RealtimeClient(uint16_t port, bool beta = false, const std::string& target = "/v1/realtime")
      : http::testing::WebSocketClient(port, target, [beta](boost::beast::websocket::request_type& request) {
          if (beta) request.set("OpenAI-Beta", "realtime=v1");
        }) {}

  Json next() {
    const std::string text = read();
    EXPECT_FALSE(text.empty()) << "the server closed with " << close_code();
    return text.empty() ? Json::object() : parsed(text);
  }
  // The next event, which has this type.
  Json expect(const std::string& type) {
    Json event = next();
    EXPECT_EQ(event.value("type", ""), type) << event.dump();
    EXPECT_TRUE(event.value("event_id", "").starts_with("event_"));
    return event;
  }
  std::vector<std::string> types(std::size_t count) {
    std::vector<std::string> out;
    for (std::size_t i = 0; i < count; ++i) out.push_back(next().value("type", ""));
    return out;
  }
  Json refused(const std::string& event) {
    send(event);
    return expect("error")["error"];
  }
  void user(const std::string& text) {
    send(
        R"({"type":"conversation.item.create","item":{"type":"message","role":"user","content":[{"type":"input_text","text":")" +
        text + R"("}]}})");
    expect("conversation.item.added");
    expect("conversation.item.done");
  }
};

class RealtimeHarness : public SpeechHarness {
 protected:
  void SetUp() override {
    SpeechHarness::SetUp();
    engine_.facts.context_length = 4096;
  }
  void make_text_only() {
    engine_.facts.speech.reset();
    engine_.facts.media = {};
  }
  void take_audio() { engine_.facts.media.audio.emplace(); }
  std::unique_ptr<RealtimeClient> open(bool beta = false) {
    auto session = std::make_unique<RealtimeClient>(server_->port(), beta);
    EXPECT_TRUE(session->open());
    created_ = session->expect("session.created")["session"];
    return session;
  }
  // Ms of a tone, or of silence, as base64.
  static std::string sound(int ms, double level) {
    std::string bytes;
    for (int i = 0; i < ms * kRealtimeRate / 1000; ++i) {
      const auto sample = static_cast<int16_t>(std::lround(32767 * level * std::sin(0.1 * i)));
      bytes += static_cast<char>(sample & 0xFF);
      bytes += static_cast<char>(sample >> 8);
    }
    std::string out;
    append_base64(out, bytes.data(), bytes.size());
    return out;
  }
  static std::string append(const std::string& audio) {
    return R"({"type":"input_audio_buffer.append","audio":")" + audio + "\"}";
  }
  const ChatPrompt& chat(std::size_t index) {
    request_ = engine_.request(index);
    return std::get<ChatPrompt>(*request_.prompt);
  }
  // The messages of a request, as the template sees them.
  Json messages(std::size_t index) {
    const auto shown = ChatTemplate::parse("{{ messages | tojson }}", "test");
    const auto segments = shown->render(chat(index).messages, {});
    EXPECT_TRUE(segments.ok());
    std::string text;
    for (const Segment& segment : *segments) text += segment.text;
    return parsed(text);
  }
  std::string metric(const std::string& name) {
    const std::string page = get("/metrics").body;
    const std::size_t at = page.find("\nmillrace:" + name + "{");
    return at == std::string::npos
               ? ""
               : page.substr(page.find(' ', at) + 1, page.find('\n', at + 1) - page.find(' ', at) - 1);
  }

  Json created_;
  GenerateRequest request_;
};

inline constexpr const char* kCreate = R"({"type":"response.create"})";
inline constexpr const char* kText = R"({"type":"session.update","session":{"output_modalities":["text"]}})";

}  // namespace millrace::api::testing
