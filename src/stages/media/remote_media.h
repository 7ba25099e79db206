// A MediaModel whose pictures and audio another stage encodes (encode_from in a pipeline's file): the file goes to it,
// and features come back, the same bits as this process would make. All stages that generate ask the same replica for
// the same picture, so one that several requests have in flight is encoded once.
//
// A replica that is gone is asked no more; another one gets the file, or this one when it is back.
//
// Owner: a MediaEncoder. Thread safety: as MediaModel.
#pragma once

#include <cstdint>
#include <memory>

#include "formats/model_config.h"
#include "stages/media/media_model.h"
#include "stages/transfer/transfer_links.h"
#include "wire/media_messages.h"

namespace millrace {

inline constexpr int kEncoderWaitMs = 30'000;         // for a replica that is available
inline constexpr int kEncoderTries = 4;               // of one picture, whose replica is lost each time
inline constexpr int kFeaturesTimeoutMs = 1'800'000;  // of one picture: a large one takes minutes on few cores

std::unique_ptr<MediaModel> make_remote_media(transfer::TransferLinks links, wire::EncoderFacts facts,
                                              const ModelConfig& config);

// Positions of the rows of a prompt on three axes; `merge`: patches of an edge that become one row.
void set_media_positions(int32_t rows, std::span<const wire::PromptMedia> media, int32_t merge, PromptInput& input);

}  // namespace millrace
