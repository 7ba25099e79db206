#include "stages/speech/spoken_turn.h"

#include <algorithm>

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

}  // namespace

Result<SpokenTurn> read_spoken_turn(Ids prompt, const TalkerConfig& config, int32_t speaker) {
  const SpokenTurnIds& ids = config.turns;
  const std::vector<Ids> turns = turns_of(prompt, ids.im_start);
  if (turns.empty() || turns.back().size() < kTurnBegin || turns.back()[1] != ids.assistant) {
    return invalid_argument("the prompt does not end with a turn of the assistant; wanted one, for an answer to speak");
  }
  SpokenTurn out;
  for (const Ids turn : std::span(turns).first(turns.size() - 1)) {
    const int32_t role = turn.size() > 1 ? turn[1] : kNoId;
    if (role == ids.system || role == ids.assistant) continue;
    if (role != ids.user) {
      return invalid_argument(
          "a turn of the prompt has the role id {}; wanted system ({}), user ({}) or assistant ({})", role, ids.system,
          ids.user, ids.assistant);
    }
    for (const int32_t id : turn) out.rows.push_back({.text = id});
  }
  add_answer_rows(turns.back(), config, speaker, out.rows);
  const Ids text = turns.back().subspan(kTurnBegin);
  out.text.assign(text.begin(), text.end());
  return out;
}

}  // namespace millrace
