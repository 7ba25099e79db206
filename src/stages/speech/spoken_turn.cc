#include "stages/speech/spoken_turn.h"

#include <algorithm>
#include <numeric>

#include "stages/media/media_encoder.h"

namespace millrace {
namespace {

constexpr std::size_t kTurnBegin = 3;  // ids before the text of a turn

using Ids = std::span<const int32_t>;

// Each turn from its im_start to the next one's; what stands before the first is no turn.
std::vector<Ids> turns_of(Ids prompt, int32_t im_start) {
  std::vector<Ids> turns;
  auto begin = std::find(prompt.begin(), prompt.end(), im_start);
  while (begin != prompt.end()) {
    const auto end = std::find(begin + 1, prompt.end(), im_start);
    turns.emplace_back(begin, end);
    begin = end;
  }
  return turns;
}

void add_answer_rows(Ids turn, const TalkerConfig& config, int32_t speaker, std::vector<SpokenRow>& rows) {
  const SpokenTurnIds& ids = config.turns;
  for (const int32_t id : turn.first(kTurnBegin)) rows.push_back({.text = id});
  for (const int32_t code : {config.codec_nothink, config.codec_think_bos, config.codec_think_eos, speaker}) {
    rows.push_back({.text = ids.tts_pad, .code = code});
  }
  rows.push_back({.text = ids.tts_bos, .code = config.codec_pad});
  rows.push_back({.code = config.codec_bos});
}

// What of a prompt is no text: of each row, its number among those that the thinker gives.
struct MediaMap {
  std::vector<int32_t> row_of;                   // kNoId: it is text
  std::vector<const wire::PromptMedia*> begins;  // null: none begins there
  int32_t rows = 0;
};

Result<MediaMap> map_media(std::span<const wire::PromptMedia> media, std::size_t length, int32_t merge) {
  RETURN_IF_ERROR(check_prompt_media(media, static_cast<int32_t>(length)));
  MediaMap out{std::vector<int32_t>(length, kNoId), std::vector<const wire::PromptMedia*>(length), 0};
  for (const wire::PromptMedia& one : media) {
    const int64_t wanted = int64_t{one.grid_h / merge} * (one.grid_w / merge);
    if (one.kind == wire::MediaKind::kImage && wanted != one.rows) {
      return invalid_argument("{} has {} rows of {} x {} patches; wanted {}", one.field, one.rows, one.grid_h,
                              one.grid_w, wanted);
    }
    out.begins[static_cast<std::size_t>(one.begin)] = &one;
    const auto first = out.row_of.begin() + one.begin;
    std::iota(first, first + one.rows, out.rows);
    out.rows += one.rows;
  }
  return out;
}

void add_user_row(std::size_t at, int32_t id, const MediaMap& media, int32_t merge, SpokenTurn& out) {
  const wire::PromptMedia* begins = media.begins[at];
  if (begins != nullptr && begins->kind == wire::MediaKind::kImage) {
    out.pictures.push_back({static_cast<int32_t>(out.rows.size()), begins->grid_h / merge, begins->grid_w / merge});
  }
  const int32_t row = media.row_of[at];
  out.rows.push_back(row == kNoId ? SpokenRow{.text = id} : SpokenRow{.media = row});
}

}  // namespace

Result<SpokenTurn> read_spoken_turn(Ids prompt, std::span<const wire::PromptMedia> given, const TalkerConfig& config,
                                    int32_t speaker) {
  const SpokenTurnIds& ids = config.turns;
  const std::vector<Ids> turns = turns_of(prompt, ids.im_start);
  if (turns.empty() || turns.back().size() < kTurnBegin || turns.back()[1] != ids.assistant) {
    return invalid_argument("the prompt does not end with a turn of the assistant; wanted one, for an answer to speak");
  }
  ASSIGN_OR_RETURN(const MediaMap media, map_media(given, prompt.size(), config.merge_size));
  SpokenTurn out{.media_rows = media.rows};
  for (const Ids turn : std::span(turns).first(turns.size() - 1)) {
    const int32_t role = turn.size() > 1 ? turn[1] : kNoId;
    if (role == ids.system || role == ids.assistant) continue;
    if (role != ids.user) {
      return invalid_argument(
          "a turn of the prompt has the role id {}; wanted system ({}), user ({}) or assistant ({})", role, ids.system,
          ids.user, ids.assistant);
    }
    const auto first = static_cast<std::size_t>(turn.data() - prompt.data());
    for (std::size_t i = 0; i < turn.size(); ++i) add_user_row(first + i, turn[i], media, config.merge_size, out);
  }
  add_answer_rows(turns.back(), config, speaker, out.rows);
  const Ids text = turns.back().subspan(kTurnBegin);
  out.text.assign(text.begin(), text.end());
  return out;
}

}  // namespace millrace
