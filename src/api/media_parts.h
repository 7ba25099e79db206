// The pictures in the messages of a chat: parts of type image_url whose URL is a data: URL. Their headers are read
// here, so that the rows which they become are known and what cannot be served is refused before anything is decoded.
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
  // `facts`: null where the model takes text only: then every picture is refused.
  explicit MediaParts(const PictureFacts* facts) : facts_(facts) {}

  bool takes_pictures() const { return facts_ != nullptr; }
  // Takes the picture out of `part`, which stays as {"type": "image"} for the template. `where`: its name in errors.
  // kUnsupported, kInvalidArgument, kTooLarge.
  Status take(Json& part, const std::string& type, const std::string& where);
  // All that were taken, in their sequence; null: none.
  std::shared_ptr<const std::vector<wire::PromptMedia>> pictures() &&;

 private:
  Status add(const std::string& url, const std::string& detail, const std::string& where);

  const PictureFacts* const facts_;
  std::vector<wire::PromptMedia> pictures_;
  std::size_t bytes_ = 0;
};

}  // namespace millrace::api
