// TalkerSequence: one answer that is spoken: the rows of its prompt, the text that has come so far, and the codes of
// its frames. Prompt rows of pictures and audio begin as hidden rows of the thinker, which come when it has computed
// its own prompt. Row r of the talker is prompt row r, or frame r - prompt_rows(); the text beside row
// prompt_rows() - 1 + i is the answer's id i, then tts_eos, then tts_pad.
//
// Text comes while the thinker writes it, so rows_ready() grows; frames stay, so that a row has the same bits when it
// is computed again.
//
// Owner: shared by the worker, which adds text and takes codes, and the batches of the compute thread, which reads rows
// and sets frames. Thread safety: any thread; it guards itself.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "runner/row_source.h"
#include "stages/speech/spoken_turn.h"
#include "tensor/shared_bytes.h"
#include "wire/speech.h"

namespace millrace {

// How the codes of a frame but the first are drawn.
struct CodeDraws {
  uint64_t seed = 0;
  bool greedy = false;
};

class TalkerSequence : public RowState {
 public:
  // `groups`: codes of a frame.
  TalkerSequence(SpokenTurn turn, const SpokenTurnIds& ids, int groups, CodeDraws draws);

  int32_t prompt_rows() const { return static_cast<int32_t>(prompt_.size()); }
  const CodeDraws& draws() const { return draws_; }

  // ---- the worker
  void add_text(std::span<const int32_t> ids);
  void end_text();
  bool any_text() const;
  // F32 [media_rows(), hidden size of the thinker], once.
  int32_t media_rows() const { return media_rows_; }
  void set_media(SharedTensor rows);
  bool waits_for_media() const;
  // Rows before this position can be computed.
  int32_t rows_ready() const;
  // Codes [count, groups] of frames [first, first + count), which were set.
  std::vector<int32_t> codes(int32_t first, int32_t count) const;

  // ---- the compute thread
  // The row at `position`; of a frame, `code` is its first and `rest` [groups - 1] gets the others. Before
  // rows_ready(). True: it is a frame's. False with kNoId as its code: the frame was never set, because the end was
  // drawn there.
  bool read_row(int32_t position, SpokenRow& row, std::span<int32_t> rest) const;
  // Row `number` of the media, which have come.
  const float* media_row(int32_t number) const;
  // `codes` [groups] of the frame at `position`.
  void set_frame(int32_t position, std::span<const int32_t> codes);

 private:
  std::size_t frame_at(int32_t position) const;

  const std::vector<SpokenRow> prompt_;
  const SpokenTurnIds ids_;
  const std::size_t groups_;
  const CodeDraws draws_;
  const int32_t media_rows_;
  const int32_t first_media_;  // of the prompt's rows; INT32_MAX: none is of media

  mutable std::mutex mutex_;
  std::optional<SharedTensor> media_;  // guarded by mutex_, as the next three; never changed once it is there
  std::vector<int32_t> text_;
  bool text_ended_ = false;
  std::vector<int32_t> frames_;  // [frames, groups]
};

}  // namespace millrace
