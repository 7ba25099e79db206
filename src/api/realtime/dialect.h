// The two forms of the Realtime API: as it is now, and its beta, whose clients send "OpenAI-Beta: realtime=v1". They
// differ in the names of events and parts, and in the shape of a session.
//
// Thread safety: constants.
#pragma once

#include <string_view>

namespace millrace::api {

struct RealtimeDialect {
  bool beta = false;
  std::string_view text_delta, text_done;
  std::string_view audio_delta, audio_done;
  std::string_view transcript_delta, transcript_done;
  std::string_view text_part, audio_part;   // of an assistant's item
  std::string_view modalities, max_tokens;  // fields of a session and of a response
};

inline constexpr RealtimeDialect kRealtime = {false,
                                              "response.output_text.delta",
                                              "response.output_text.done",
                                              "response.output_audio.delta",
                                              "response.output_audio.done",
                                              "response.output_audio_transcript.delta",
                                              "response.output_audio_transcript.done",
                                              "output_text",
                                              "output_audio",
                                              "output_modalities",
                                              "max_output_tokens"};
inline constexpr RealtimeDialect kRealtimeBeta = {true,
                                                  "response.text.delta",
                                                  "response.text.done",
                                                  "response.audio.delta",
                                                  "response.audio.done",
                                                  "response.audio_transcript.delta",
                                                  "response.audio_transcript.done",
                                                  "text",
                                                  "audio",
                                                  "modalities",
                                                  "max_response_output_tokens"};

}  // namespace millrace::api
