#include "wire/other_version.h"

#include <type_traits>
#include <variant>

#include "wire/limits.h"
#include "wire/msgpack.h"
#include "wire/pipeline_messages.h"

namespace millrace::wire {
namespace {

constexpr uint64_t kRegisterType = 14;  // in every version
constexpr std::size_t kRegisterIndex = 7;
static_assert(std::is_same_v<std::variant_alternative_t<kRegisterIndex, Message>, Register>);
static_assert(kMessageTypes[kRegisterIndex] == kRegisterType);

// Of either sign; a read that fails may have taken some bytes.
bool skip_integer(MsgpackReader& in) {
  const MsgpackReader before = in;
  if (in.unsigned_integer().ok()) return true;
  in = before;
  return in.integer().ok();
}

// One value of any kind and depth, without recursion. False: the frame is broken.
bool skip(MsgpackReader& in) {
  for (std::size_t left = 1; left > 0; --left) {
    switch (in.peek()) {
      case MsgpackType::kEnd:
      case MsgpackType::kInvalid:
        return false;
      case MsgpackType::kNil:
        in.skip_nil();
        break;
      case MsgpackType::kBoolean:
        if (!in.boolean().ok()) return false;
        break;
      case MsgpackType::kInteger:
        if (!skip_integer(in)) return false;
        break;
      case MsgpackType::kNumber:
        if (!in.number().ok()) return false;
        break;
      case MsgpackType::kString:
        if (!in.string(kMaxFrameBytes).ok()) return false;
        break;
      case MsgpackType::kBinary:
        if (!in.binary(kMaxFrameBytes).ok()) return false;
        break;
      case MsgpackType::kExt:
        if (!in.ext(kMaxFrameBytes).ok()) return false;
        break;
      case MsgpackType::kArray: {
        const auto count = in.array(kMaxFrameBytes);
        if (!count.ok()) return false;
        left += *count;
        break;
      }
      case MsgpackType::kMap: {
        const auto count = in.map(kMaxFrameBytes);
        if (!count.ok()) return false;
        left += 2 * *count;
        break;
      }
    }
  }
  return true;
}

// The next value where it is text of that length or shorter; else it is skipped.
std::optional<std::string> text(MsgpackReader& in, std::size_t max_bytes) {
  if (in.peek() != MsgpackType::kString) return skip(in) ? std::optional<std::string>("") : std::nullopt;
  const auto seen = in.string(kMaxFrameBytes);
  if (!seen.ok()) return std::nullopt;
  return seen->size() <= max_bytes ? std::string(*seen) : std::string();
}

std::optional<uint64_t> number(MsgpackReader& in) {
  if (in.peek() != MsgpackType::kInteger) return skip(in) ? std::optional<uint64_t>(0) : std::nullopt;
  const auto seen = in.unsigned_integer();
  return seen.ok() ? std::optional<uint64_t>(*seen) : std::nullopt;
}

// Of an Origin the stage's name is field 2, of a Peer field 1; replica and incarnation, 2 and 3 of a Peer.
bool read_self(MsgpackReader& in, Peer& self) {
  const auto fields = in.map(kMaxMapEntries);
  if (!fields.ok()) return false;
  for (std::size_t i = 0; i < *fields; ++i) {
    const auto key = in.unsigned_integer();
    if (!key.ok()) return false;
    if ((*key == 1 || *key == 2) && in.peek() == MsgpackType::kString) {
      const auto name = text(in, kMaxStageNameBytes);
      if (name && is_stage_name(*name)) self.stage = *name;
    } else if (*key == 2 || *key == 3) {
      const auto value = number(in);
      if (!value) return false;
      if (*key == 2) self.replica = static_cast<uint32_t>(*value);
      if (*key == 3) self.incarnation = *value;
    } else if (!skip(in)) {
      return false;
    }
  }
  return true;
}

bool read_register(MsgpackReader& in, Register& out) {
  const auto fields = in.map(kMaxMapEntries);
  if (!fields.ok()) return false;
  for (std::size_t i = 0; i < *fields; ++i) {
    const auto key = in.unsigned_integer();
    if (!key.ok()) return false;
    if (*key <= 2 && in.peek() == MsgpackType::kMap) {
      if (!read_self(in, out.self)) return false;
    } else if (*key == 2 || *key == 1) {  // of a StageStatus, the stage; of a Register, reply_to
      const auto seen = text(in, kMaxEndpointBytes);
      if (!seen) return false;
      if (*key == 1 && is_stage_name(*seen)) out.self.stage = *seen;
      if (*key == 2) out.reply_to = *seen;
    } else if (!skip(in)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<OtherVersionFrame> read_other_version(std::span<const char> frame) {
  MsgpackReader in(frame);
  if (frame.size() > kMaxFrameBytes || !in.map(kMaxMapEntries).ok() || !in.skip_small(0)) return std::nullopt;
  const Result<uint64_t> version = in.unsigned_integer();
  if (!version.ok() || *version == kWireVersion) return std::nullopt;
  OtherVersionFrame out{.version = *version};
  if (!in.skip_small(1)) return out;
  const Result<uint64_t> type = in.unsigned_integer();
  Register guess;
  if (!type.ok() || !in.skip_small(2) || !read_register(in, guess)) return out;
  out.stage = guess.self.stage;
  if (*type != kRegisterType || guess.self.stage.empty() || guess.reply_to.empty() || *version > UINT32_MAX) return out;
  guess.wire_version = static_cast<uint32_t>(*version);
  out.registration = std::move(guess);
  return out;
}

}  // namespace millrace::wire
