// The pictures and audios in the messages of a chat: parts of type image_url whose URL is a data: URL, of type
// input_audio (OpenAI's: base64 and a format) and of type audio_url (a data: URL, as vLLM and others have it). Their
// headers are read here, so that the rows which they become are known and what cannot be served is refused before
// anything is decoded.
//
// Thread safety: a reader is one thread's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "stages/engine.h"

namespace millrace::api {

class MediaParts {
 public:
  // What `facts` has not is refused. They must outlive this.
  explicit MediaParts(const MediaFacts& facts) : facts_(facts) {}

  bool takes_any() const { return facts_.any(); }
  // Takes the picture or audio out of `part`, which stays as {"type": "image"} or {"type": "audio"} for the template.
  // `where`: its name in errors. kUnsupported, kInvalidArgument, kTooLarge.
  Status take(Json& part, const std::string& type, const std::string& where);
  // An audio that is no part of a message: an uploaded file. `where`: the name of its field.
  Status add_audio(std::string bytes, const std::string& where);
  // All that were taken, in their sequence; null: none.
  PromptMediaList list() &&;

 private:
  Status take_picture(const Json& part, const std::string& where);
  Status take_input_audio(const Json& part, const std::string& where);
  Status take_audio_url(const Json& part, const std::string& where);
  Status add(Result<wire::PromptMedia> media, const std::string& where);
  std::string wanted_types() const;

  const MediaFacts& facts_;
  std::vector<wire::PromptMedia> media_;
  std::size_t bytes_ = 0;
};

}  // namespace millrace::api
