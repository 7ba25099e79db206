// SpeechHarness: the routes in front of a model that speaks, and what tests send and expect of its answers.
// For tests only. Thread safety: as ApiHarness.
#pragma once

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "api/testing/api_harness.h"
#include "media/audio_writer.h"
#include "media/data_url.h"

namespace millrace::api::testing {

class SpeechHarness : public ApiHarness {
 protected:
  static constexpr int kRate = 24000;
  static constexpr std::size_t kFrame = 1920;  // samples

  void SetUp() override {
    ApiHarness::SetUp();
    engine_.facts.speech = SpeechFacts{.voices = {"chelsie", "ethan"}, .sample_rate = kRate, .frame_rate = 12.5};
  }

  static std::vector<float> tone(std::size_t samples) {
    std::vector<float> out(samples);
    for (std::size_t i = 0; i < samples; ++i) out[i] = 0.5f * std::sin(0.05f * static_cast<float>(i));
    return out;
  }
  static std::string file(const std::vector<float>& samples, AudioFormat format) {
    auto bytes = encode_audio(samples, kRate, format);
    EXPECT_TRUE(bytes.ok()) << bytes.status().to_string();
    return bytes.ok() ? *bytes : "";
  }
  static std::string decoded(const Json& base64) {
    auto bytes = decode_base64(base64.get_ref<const std::string&>(), std::size_t{1} << 30);
    EXPECT_TRUE(bytes.ok());
    return bytes.ok() ? std::string(bytes->begin(), bytes->end()) : "";
  }
  // A chat of one message, with more fields.
  static std::string chat(std::string_view more) {
    return fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}],{}}})", more);
  }
  // Status 400 and the message.
  std::string refused(const std::string& path, const std::string& body) {
    const Answer answer = post(path, body).get();
    EXPECT_EQ(answer.status, 400) << body << answer.body;
    return answer.json()["error"]["message"];
  }
};

}  // namespace millrace::api::testing
