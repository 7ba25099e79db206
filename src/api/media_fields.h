// Where a part of a message has its picture, video or audio, in the dialects that differ in it: chats (image_url,
// video_url, input_audio, audio_url), /v1/messages (image, with a source) and /v1/responses (input_image, input_audio).
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "stages/media/media_rows.h"

namespace millrace::api {

enum class MediaDialect : uint8_t { kChat, kMessages, kResponses };

enum class MediaForm : uint8_t { kPicture, kVideo, kAudio };

// A picture, video or audio, not yet decoded. `text` is a member of the part, which must outlive this.
struct MediaField {
  MediaForm form = MediaForm::kPicture;
  bool is_url = true;  // false: `text` is base64
  std::string_view text;
  std::string name;         // of the member, in errors: "messages[0].content[1].image_url.url"
  bool low_detail = false;  // of a picture
};

// Whether a part of this type has a picture, a video or an audio that the model takes.
bool is_media_type(MediaDialect dialect, const MediaFacts& facts, std::string_view type);
// What an error wants instead of another type: `others`, which have no media, and those of is_media_type(). Of a model
// that takes none: "text: this model takes text only".
std::string wanted_types(MediaDialect dialect, const MediaFacts& facts, std::vector<std::string_view> others);

// `type`: one of is_media_type(). `where`: the part's name in errors. kInvalidArgument, or kUnsupported of a member
// that would change how the picture or audio is read.
Result<MediaField> read_media_field(MediaDialect dialect, const Json& part, const std::string& type,
                                    const std::string& where);

}  // namespace millrace::api
