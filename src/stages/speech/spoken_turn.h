// From a prompt's ids to the rows with which a talker begins (transformers 5.12, Qwen3OmniMoeForConditionalGeneration.
// generate): the user's turns, their pictures and audio as hidden rows of the thinker and all else as text, then nine
// rows of the assistant's turn, where codes stand beside text.
//
//   row 0..2  the first three ids of the turn: <|im_start|>, the role, the end of the line
//   row 3..5  tts_pad + codec_nothink, codec_think_bos, codec_think_eos
//   row 6, 7  tts_pad + the voice, tts_bos + codec_pad
//   row 8     the first text of the answer + codec_bos
//
// Turns of the system and older ones of the assistant are left out. Behind these rows stand the codes of each frame
// beside the next text; the text's end is one tts_eos, then tts_pad for ever.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "formats/talker_config.h"
#include "models/vision/mrope.h"
#include "wire/prompt_media.h"

namespace millrace {

inline constexpr int32_t kNoId = -1;

// What a row is the sum of: the projected embedding of an id of the thinker, and that of an id of the talker.
struct SpokenRow {
  int32_t text = kNoId;
  int32_t code = kNoId;
  int32_t media = kNoId;  // or the projected hidden row of that number, of all that the thinker gives of its media

  friend bool operator==(const SpokenRow&, const SpokenRow&) = default;
};

struct SpokenTurn {
  std::vector<SpokenRow> rows;  // the last one's text is kNoId: it is the first of the answer, whenever that comes
  std::vector<int32_t> text;    // of the answer, that stands in the prompt already
  int32_t media_rows = 0;       // that the thinker gives, those of other turns included
  std::vector<PictureRows> pictures;  // among `rows`
};

// `media`: of the prompt, ascending, inside it. kInvalidArgument where the prompt does not end with a turn of the
// assistant, for a role that is neither the system, the user nor the assistant, and for rows that are not those of a
// picture's grid.
Result<SpokenTurn> read_spoken_turn(std::span<const int32_t> prompt, std::span<const wire::PromptMedia> media,
                                    const TalkerConfig& config, int32_t speaker);

}  // namespace millrace
