#include "collective/gloo_pair.h"

#include "collective/limits.h"
#include "collective/little_endian.h"

namespace millrace::collective {
namespace {

Status check_length(uint64_t slot, uint64_t seen, uint64_t wanted) {
  if (seen == wanted) return ok_status();
  return invalid_argument("{} has {} bytes; wanted {}", describe_slot(slot), seen, wanted);
}

}  // namespace

Status GlooPair::send(const Preamble& preamble, const WaitLimit& limit) {
  return name_peer(socket_.write_all(bytes_of(encode_preamble(preamble)), limit), preamble.slot);
}

Result<Preamble> GlooPair::read(const WaitLimit& limit) {
  std::string bytes(kPreambleBytes, '\0');
  RETURN_IF_ERROR(socket_.read_all(bytes_of(bytes), limit));
  return decode_preamble(bytes);
}

// Trainers that broadcast without waiting announce many tensors ahead.
Status GlooPair::note(const Preamble& preamble) {
  auto& notes = preamble.op == GlooOp::kReceiveReady ? receivers_ : announced_;
  // The slots are a peer's numbers: without a limit it could fill the memory with announcements that no call of ours
  // takes out.
  if (notes.size() >= kMaxAnnouncements) {
    return error(StatusCode::kTooLarge, "{} collectives are announced, the most that may be", notes.size());
  }
  notes[preamble.slot] = preamble.length;
  return ok_status();
}

Status GlooPair::name_peer(const Status& status, uint64_t slot) const {
  if (status.ok()) return status;
  std::string text = fmt::format("rank {}, {}", rank_, describe_slot(slot));
  // The counts of both ends differ where one of them took part in another collective, or had one fail.
  if (!announced_.empty() && !announced_.contains(slot)) {
    text += fmt::format(" (it announced {})", describe_slot(announced_.begin()->first));
  }
  return status.with_prefix(text);
}

Status GlooPair::await_receiver(uint64_t slot, uint64_t length, const WaitLimit& limit) {
  while (!receivers_.contains(slot)) {
    const Result<Preamble> preamble = read(limit);
    if (!preamble.ok()) return name_peer(preamble.status(), slot);
    // A peer sends data only when it was asked for, and this rank asks its parent alone, in await_data().
    if (preamble->op == GlooOp::kData) {
      return name_peer(invalid_argument("it sends data that was not asked for"), slot);
    }
    RETURN_IF_ERROR(name_peer(note(*preamble), slot));
  }
  const uint64_t asked = receivers_.at(slot);
  receivers_.erase(slot);
  return name_peer(check_length(slot, asked, length), slot);
}

// The announcement may have come earlier, while another slot was waited for, or comes now; gloo also sends data without
// one, where the request was there first.
Status GlooPair::await_data(uint64_t slot, uint64_t length, const WaitLimit& limit) {
  while (true) {
    if (const auto found = announced_.find(slot); found != announced_.end()) {
      RETURN_IF_ERROR(name_peer(check_length(slot, found->second, length), slot));
    }
    const Result<Preamble> preamble = read(limit);
    if (!preamble.ok()) return name_peer(preamble.status(), slot);
    if (preamble->op != GlooOp::kData) {
      RETURN_IF_ERROR(name_peer(note(*preamble), slot));
      continue;
    }
    if (preamble->slot != slot) {
      return name_peer(invalid_argument("it sends {}", describe_slot(preamble->slot)), slot);
    }
    announced_.erase(slot);
    return name_peer(check_length(slot, preamble->length, length), slot);
  }
}

}  // namespace millrace::collective
