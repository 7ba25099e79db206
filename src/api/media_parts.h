// The pictures, videos and audios in the messages of a request, decoded from base64 and with their headers read, so
// that the rows which they become are known and what cannot be served is refused before anything is decoded further.
//
// Owner: the handler that reads the request, on its stack. Thread safety: that handler's thread alone.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/media_fields.h"
#include "api/media_urls.h"
#include "base/json.h"
#include "base/status.h"
#include "stages/engine.h"

namespace millrace::api {

class MediaParts {
 public:
  // What `facts` has not is refused. `urls`: of files that are fetched; null: none are. Both must outlive this.
  explicit MediaParts(const MediaFacts& facts, MediaDialect dialect = MediaDialect::kChat, MediaUrls* urls = nullptr)
      : facts_(facts), dialect_(dialect), urls_(urls) {}

  const MediaFacts& facts() const { return facts_; }
  // Whether such a part of a chat stands for one that was taken: of the dialects that are translated into chats.
  bool is_stand_in(std::string_view type) const {
    return dialect_ != MediaDialect::kChat && (type == "image" || type == "audio");
  }
  // Takes the picture, video or audio of `part`. The answer is the type of the part {"type": ...} that stands for it in
  // what the template gets. `where`: the part's name in errors; `others`: types without media, for the error of an
  // unknown type. kUnsupported, kInvalidArgument, kTooLarge.
  Result<std::string> take(const Json& part, const std::string& type, const std::string& where,
                           std::initializer_list<std::string_view> others);
  // An audio that is no part of a message: an uploaded file. `where`: the name of its field.
  Status add_audio(std::string bytes, const std::string& where);
  // One that was taken before, of an earlier request.
  Status add_taken(const PromptItem& item, const std::string& where) { return add_item(item, where); }
  // All that were taken, in their sequence; null: none. kUnavailable: some must be fetched first (api/media_urls.h).
  Result<PromptMediaList> list() &&;

 private:
  // nullopt: it is not fetched yet.
  Result<std::optional<std::string>> read_bytes(const MediaField& field);
  Status count(const std::string& where);
  Status add(Result<wire::PromptMedia> media, const std::string& where);
  Status add_item(PromptItem item, const std::string& where);
  Status take_video(const MediaField& field, const std::string& where);

  const MediaFacts& facts_;
  const MediaDialect dialect_;
  MediaUrls* const urls_;
  std::vector<PromptItem> media_;
  std::size_t count_ = 0, bytes_ = 0;  // those that are not fetched yet count too
};

}  // namespace millrace::api
