#include "wire/codec.h"

#include <bit>
#include <cstring>
#include <type_traits>
#include <variant>

#include "base/function_ref.h"
#include "base/utf8.h"
#include "wire/limits.h"
#include "wire/msgpack.h"

namespace millrace::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "token ids travel as little-endian int32");

// The largest number of each enumeration: what decode() accepts.
constexpr uint64_t last_value(FinishReason) { return static_cast<uint64_t>(FinishReason::kError); }
constexpr uint64_t last_value(GrammarKind) { return static_cast<uint64_t>(GrammarKind::kStructuralTag); }
constexpr uint64_t last_value(ToolDialect) { return static_cast<uint64_t>(ToolDialect::kDeepSeek); }
constexpr uint64_t last_value(ReasoningDialect) { return static_cast<uint64_t>(ReasoningDialect::kThinkOpen); }
constexpr uint64_t last_value(OutputEvent::Kind) { return static_cast<uint64_t>(OutputEvent::Kind::kCallEnd); }
constexpr uint64_t last_value(StageState) { return static_cast<uint64_t>(StageState::kDraining); }
constexpr uint64_t last_value(AdminAction) { return static_cast<uint64_t>(AdminAction::kShowLog); }
constexpr uint64_t last_value(InFlightPolicy) { return static_cast<uint64_t>(InFlightPolicy::kAbort); }
constexpr uint64_t last_value(MediaKind) { return static_cast<uint64_t>(MediaKind::kAudio); }
constexpr uint64_t last_value(StepKind) { return static_cast<uint64_t>(StepKind::kMixed); }
constexpr uint64_t last_value(KvRole) { return static_cast<uint64_t>(KvRole::kDecode); }
constexpr uint64_t last_value(StageRequestState) { return static_cast<uint64_t>(StageRequestState::kFailed); }
constexpr uint64_t last_value(RowType) { return static_cast<uint64_t>(RowType::kF32); }
constexpr uint64_t last_value(RowLayout) { return static_cast<uint64_t>(RowLayout::kRowMajor); }
constexpr uint64_t last_value(StatusCode) { return static_cast<uint64_t>(StatusCode::kInternal); }

// What a visit() may pass for a field besides its number: kNoLimit where it passes nothing, and its type's own holds.
constexpr std::size_t kNoLimit = 0;

// A message lists its fields once, in visit(); writing, reading and counting are three walks over that list, so they
// cannot disagree about a field.
template <typename T>
concept HasVisit = requires(T& value) {
  value.visit([](int, auto&, std::size_t = kNoLimit) {});
};
template <typename T>
concept HasValidate = requires(const T& value) {
  validate(value);
};
template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};
// The same on the wire: where the value lies in memory is not the peer's business.
template <typename T>
struct IsOptional<Boxed<T>> : std::true_type {};
template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

template <typename T>
struct IsVariant : std::false_type {};
template <typename... T>
struct IsVariant<std::variant<T...>> : std::true_type {};

// A bit for each field's number. A constant for each type: visit() names its fields unconditionally, also those that
// are absent. kMaxMapEntries is 64 for the 64 bits.
template <typename T>
uint64_t fields_of(T& value) {
  uint64_t fields = 0;
  value.visit([&](int number, auto&, std::size_t = kNoLimit) {
    CHECK(number >= 0 && number < 64 && !(fields >> number & 1));
    fields |= uint64_t{1} << number;
  });
  return fields;
}

Status check_size(std::size_t size, std::size_t limit, std::string_view what) {
  if (size <= limit) return ok_status();
  return error(StatusCode::kTooLarge, "{} {}; wanted at most {}", size, what, limit);
}

// The number of elements that a list may have, and the bytes of a string inside one (only stop strings come in lists).
template <typename T>
constexpr std::size_t max_elements() {
  // A delta has a row for each position of a prompt, so these lists alone may be longer than a batch.
  if (std::is_same_v<T, TokenLogprobs>) return kMaxChunkLogprobs;
  return std::is_same_v<T, std::string> ? kMaxStopStrings : kMaxBatchEntries;
}

constexpr std::size_t or_default(std::size_t limit, std::size_t fallback) {
  return limit == kNoLimit ? fallback : limit;
}

template <typename T>
Status write_value(MsgpackWriter& out, T& value, std::size_t limit = kNoLimit);

// The three walks are classes whose function for a field depends on the field's type alone, so all messages share it: a
// walk is a row of calls. Lambdas inside the functions for a message would be compiled once for each field of each
// message: twice the code.
class FieldsWriter {
 public:
  explicit FieldsWriter(MsgpackWriter& out) : out_(out) {}

  template <typename T>
  void operator()(int number, T& field, std::size_t limit = kNoLimit) {
    // visit() cannot be left in the middle: after an error the rest of the walk does nothing.
    if (!status_.ok()) return;
    out_.integer(number);
    status_ = write_value(out_, field, limit);
    if (!status_.ok()) status_ = status_.with_prefix(std::to_string(number));
  }

  Status take_status() { return std::move(status_); }

 private:
  MsgpackWriter& out_;
  Status status_;
};

template <typename T>
Status write_struct(MsgpackWriter& out, T& value) {
  out.map(static_cast<std::size_t>(std::popcount(fields_of(value))));
  FieldsWriter writer(out);
  value.visit(writer);
  return writer.take_status();
}

// A message that is too long or no text is mended: better than a failure that is never reported.
Status write_failure(MsgpackWriter& out, Failure& failure) {
  if (failure.message.size() <= kMaxErrorBytes && is_utf8(failure.message)) return write_struct(out, failure);
  // Repaired first: utf8_prefix() finds the bounds of characters in well-formed text alone.
  Failure mended{failure.code, std::string(utf8_prefix(utf8_repair(failure.message), kMaxErrorBytes))};
  return write_struct(out, mended);
}

template <typename T>
Status write_value(MsgpackWriter& out, T& value, std::size_t limit) {
  if constexpr (std::is_same_v<T, bool>) {
    out.boolean(value);
  } else if constexpr (std::is_same_v<T, double>) {
    out.number(value);
  } else if constexpr (std::is_enum_v<T>) {
    out.unsigned_integer(static_cast<uint64_t>(value));
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    // Apart from the other integers: those over INT64_MAX must not go through a signed one.
    out.unsigned_integer(value);
  } else if constexpr (std::is_integral_v<T>) {
    out.integer(value);
  } else if constexpr (std::is_same_v<T, ReqId>) {
    out.unsigned_integer(value.value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    RETURN_IF_ERROR(check_size(value.size(), or_default(limit, kMaxTextBytes), "bytes of text"));
    out.string(value);
  } else if constexpr (std::is_same_v<T, Blob>) {
    RETURN_IF_ERROR(check_size(value.bytes.size(), or_default(limit, kMaxTreeBytes), "bytes"));
    out.binary(value.bytes);
  } else if constexpr (IsOptional<T>::value) {
    if (value) return write_value(out, *value, limit);
    out.nil();
  } else if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
    // One bin and not an array: a prompt of a million ids is copied at once and costs 4 bytes each.
    RETURN_IF_ERROR(check_size(value.size(), kMaxPromptTokens, "token ids"));
    out.binary({reinterpret_cast<const char*>(value.data()), value.size() * sizeof(int32_t)});
  } else if constexpr (IsVector<T>::value) {
    RETURN_IF_ERROR(check_size(value.size(), or_default(limit, max_elements<typename T::value_type>()), "elements"));
    out.array(value.size());
    // The limit reaches strings in lists only; structs take the limits of their own fields.
    for (auto& element : value) RETURN_IF_ERROR(write_value(out, element, kMaxStopStringBytes));
  } else if constexpr (IsVariant<T>::value) {  // a map of one entry: the alternative's number and the alternative
    out.map(1);
    out.integer(static_cast<int64_t>(value.index()));
    const Status status = std::visit([&out](auto& body) { return write_value(out, body); }, value);
    return status.ok() ? status : status.with_prefix(fmt::format("body {}", value.index()));
  } else if constexpr (std::is_same_v<T, Failure>) {
    return write_failure(out, value);
  } else {
    static_assert(HasVisit<T>);
    return write_struct(out, value);
  }
  return ok_status();
}

template <typename T>
Status write_body(MsgpackWriter& out, T& body) {
  // First the bounded write, then the meaning: validate() may rely on sizes that are within their limits.
  RETURN_IF_ERROR(write_struct(out, body));
  if constexpr (HasValidate<T>) return validate(body);
  return ok_status();
}

template <typename T>
Status read_value(MsgpackReader& in, T& value, std::size_t limit = kNoLimit);

// Reads the one field of that number.
class FieldReader {
 public:
  FieldReader(MsgpackReader& in, uint64_t number) : in_(in), number_(number) {}

  template <typename T>
  void operator()(int number, T& field, std::size_t limit = kNoLimit) {
    if (static_cast<uint64_t>(number) != number_) return;
    status_ = read_value(in_, field, limit).with_prefix(std::to_string(number));
  }

  Status take_status() { return std::move(status_); }

 private:
  MsgpackReader& in_;
  uint64_t number_;
  Status status_;
};

// Reads a struct's map: the walk takes the fields whose keys come in its order, finish() those that are left.
class FieldsReader {
 public:
  explicit FieldsReader(MsgpackReader& in) : in_(in) {
    const Result<std::size_t> entries = in.map(kMaxMapEntries);
    if (entries.ok()) {
      entries_ = *entries;
    } else {
      status_ = entries.status();
    }
  }

  template <typename T>
  void operator()(int number, T& field, std::size_t limit = kNoLimit) {
    // At entries_ == 0 the next byte belongs to what follows the struct, so it must not be looked at as a key. A key
    // that is not `number` is left for a later field or for finish().
    if (!status_.ok() || entries_ == 0 || !in_.skip_small(static_cast<uint8_t>(number))) return;
    --entries_;
    seen_ |= uint64_t{1} << number;
    status_ = read_value(in_, field, limit);
    if (!status_.ok()) status_ = status_.with_prefix(std::to_string(number));
  }

  // `fields` has a bit for each of the struct's; `walk` visits them once more.
  Status finish(uint64_t fields, FunctionRef<void(FieldReader&)> walk) {
    RETURN_IF_ERROR(status_);
    for (; entries_ > 0; --entries_) {
      ASSIGN_OR_RETURN(const uint64_t number, in_.unsigned_integer());
      // A shift by 64 or more would be undefined.
      if (number >= 64 || (seen_ >> number & 1)) return invalid_argument("field {} is repeated or unknown", number);
      if (!(fields >> number & 1)) return invalid_argument("field {} is unknown", number);
      FieldReader reader(in_, number);
      walk(reader);
      RETURN_IF_ERROR(reader.take_status());
      seen_ |= uint64_t{1} << number;
    }
    if (seen_ == fields) return ok_status();
    return invalid_argument("field {} is missing", std::countr_zero(fields & ~seen_));
  }

 private:
  MsgpackReader& in_;
  std::size_t entries_ = 0;  // those not read yet
  uint64_t seen_ = 0;        // a bit for each field read
  Status status_;
};

// Every field exactly once, in any order: a struct's map from field number to value. Our own encode() writes them in
// the order of visit(), so that one walk mostly reads them all.
template <typename T>
Status read_struct(MsgpackReader& in, T& value) {
  FieldsReader fields(in);
  value.visit(fields);
  return fields.finish(fields_of(value), [&value](FieldReader& field) { value.visit(field); });
}

Status read_ids(MsgpackReader& in, std::vector<int32_t>& ids) {
  ASSIGN_OR_RETURN(const std::string_view bytes, in.binary(kMaxPromptTokens * sizeof(int32_t)));
  if (bytes.size() % sizeof(int32_t))
    return invalid_argument("{} bytes of token ids; wanted a multiple of 4", bytes.size());
  // After the reader has checked that the frame has these bytes: a declared length alone allocates nothing.
  ids.resize(bytes.size() / sizeof(int32_t));
  // By memcpy, as the frame's bytes have no alignment; without the check data() may be null.
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ok_status();
}

template <typename T>
Status read_number(MsgpackReader& in, T& value) {
  if constexpr (std::is_enum_v<T>) {
    ASSIGN_OR_RETURN(const uint64_t number, in.unsigned_integer());
    // A number beyond the last one would be a value that no switch over the enumeration knows.
    if (number > last_value(T{}))
      return invalid_argument("{} is no known value; wanted at most {}", number, last_value(T{}));
    value = static_cast<T>(number);
  } else if constexpr (std::is_unsigned_v<T>) {
    ASSIGN_OR_RETURN(const uint64_t number, in.unsigned_integer());
    value = static_cast<T>(number);
    if (value != number) return invalid_argument("{} is out of range", number);
  } else {
    ASSIGN_OR_RETURN(const int64_t number, in.integer());
    value = static_cast<T>(number);
    if (value != number) return invalid_argument("{} is out of range", number);
  }
  return ok_status();
}

template <std::size_t Index = 0, typename T>
Status read_alternative(MsgpackReader& in, uint64_t number, T& value) {
  // Unrolled by the compiler into one comparison for each alternative; the number is data of the peer's and cannot
  // select a type otherwise.
  if constexpr (Index < std::variant_size_v<T>) {
    if (number != Index) return read_alternative<Index + 1>(in, number, value);
    const Status status = read_value(in, value.template emplace<Index>());
    return status.ok() ? status : status.with_prefix(fmt::format("body {}", number));
  } else {
    return invalid_argument("body {} is unknown; wanted one below {}", number, std::variant_size_v<T>);
  }
}

template <typename T>
Status read_variant(MsgpackReader& in, T& value) {
  ASSIGN_OR_RETURN(const std::size_t entries, in.map(kMaxMapEntries));
  if (entries != 1) return invalid_argument("{} bodies; wanted 1", entries);
  ASSIGN_OR_RETURN(const uint64_t number, in.unsigned_integer());
  return read_alternative(in, number, value);
}

template <typename T>
Status read_value(MsgpackReader& in, T& value, std::size_t limit) {
  if constexpr (std::is_same_v<T, bool>) {
    ASSIGN_OR_RETURN(value, in.boolean());
  } else if constexpr (std::is_same_v<T, double>) {
    ASSIGN_OR_RETURN(value, in.number());
  } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
    return read_number(in, value);
  } else if constexpr (std::is_same_v<T, ReqId>) {
    ASSIGN_OR_RETURN(value.value, in.unsigned_integer());
  } else if constexpr (std::is_same_v<T, std::string>) {
    ASSIGN_OR_RETURN(const std::string_view text, in.string(or_default(limit, kMaxTextBytes)));
    value.assign(text);
  } else if constexpr (std::is_same_v<T, Blob>) {
    ASSIGN_OR_RETURN(const std::string_view bytes, in.binary(or_default(limit, kMaxTreeBytes)));
    value.bytes.assign(bytes);
  } else if constexpr (IsOptional<T>::value) {
    if (in.skip_nil()) return ok_status();
    return read_value(in, value.emplace(), limit);
  } else if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
    return read_ids(in, value);
  } else if constexpr (IsVector<T>::value) {
    ASSIGN_OR_RETURN(const std::size_t count, in.array(or_default(limit, max_elements<typename T::value_type>())));
    for (std::size_t i = 0; i < count; ++i) {
      // Grown element by element. array() has bounded the count by the bytes left, but an element in memory is larger
      // than one byte, so reserving for the count would let a small frame allocate much.
      RETURN_IF_ERROR(read_value(in, value.emplace_back(), kMaxStopStringBytes));
    }
  } else if constexpr (IsVariant<T>::value) {
    return read_variant(in, value);
  } else if constexpr (std::is_same_v<T, Failure>) {
    RETURN_IF_ERROR(read_struct(in, value));
    // It goes to clients as JSON as it is.
    if (!is_utf8(value.message)) return invalid_argument("a failure's message is no UTF-8");
  } else {
    return read_struct(in, value);
  }
  return ok_status();
}

template <std::size_t Index = 0>
Status read_body(MsgpackReader& in, uint64_t type, Message& message) {
  if constexpr (Index < std::variant_size_v<Message>) {
    // Types are looked up and not used as the variant's index, because numbers of types that are gone stay unused.
    if (type == kMessageTypes[Index]) {
      auto& body = message.emplace<Index>();
      RETURN_IF_ERROR(read_struct(in, body));
      // What no single field shows, such as two lists that must have one length.
      if constexpr (HasValidate<std::decay_t<decltype(body)>>) return validate(body);
      return ok_status();
    }
    return read_body<Index + 1>(in, type, message);
  } else {
    return invalid_argument("message type {} is unknown; the last one is {}", type, kMessageTypes.back());
  }
}

// The three header entries come in this order; anything else is not one of our frames.
Result<uint64_t> read_header_entry(MsgpackReader& in, uint64_t key) {
  ASSIGN_OR_RETURN(const uint64_t seen, in.unsigned_integer());
  if (seen != key) return invalid_argument("header entry {}; wanted {}", seen, key);
  return in.unsigned_integer();
}

}  // namespace

Result<std::string> encode(const Message& message) {
  MsgpackWriter out;
  out.map(3);
  // A joiner of another version is refused by a Welcome in the frame version that it wrote; see docs/wire-protocol.md.
  const auto* welcome = std::get_if<Welcome>(&message);
  out.integer(0), out.unsigned_integer(welcome ? welcome->wire_version : kWireVersion);
  out.integer(1), out.unsigned_integer(message_type(message));
  out.integer(2);
  // visit() hands out mutable references because decode() fills through it; writing does not change them.
  RETURN_IF_ERROR(std::visit([&](auto& body) { return write_body(out, body); }, const_cast<Message&>(message)));
  // Each field is within its limit, yet the sum may be over that of a frame.
  if (out.size() > kMaxFrameBytes) {
    return error(StatusCode::kTooLarge, "a message of {} bytes; wanted at most {}", out.size(), kMaxFrameBytes);
  }
  return out.take();
}

Result<Message> decode(std::span<const char> frame) {
  if (frame.size() > kMaxFrameBytes) {
    return error(StatusCode::kTooLarge, "a frame of {} bytes; wanted at most {}", frame.size(), kMaxFrameBytes);
  }
  MsgpackReader in(frame);
  ASSIGN_OR_RETURN(const std::size_t entries, in.map(kMaxMapEntries));
  if (entries != 3) return invalid_argument("a frame of {} entries; wanted 3 (version, type, body)", entries);
  ASSIGN_OR_RETURN(const uint64_t version, read_header_entry(in, 0));
  // Before the type and the body, whose meaning depends on it. decode_frame() looks at such a frame once more, for a
  // peer of another version that wants to join.
  if (version != kWireVersion) return invalid_argument("wire version {}; wanted {}", version, kWireVersion);
  ASSIGN_OR_RETURN(const uint64_t type, read_header_entry(in, 1));
  ASSIGN_OR_RETURN(const uint64_t body_key, in.unsigned_integer());
  if (body_key != 2) return invalid_argument("header entry {}; wanted 2", body_key);
  Message message;
  RETURN_IF_ERROR(read_body(in, type, message).with_prefix(fmt::format("message type {}", type)));
  if (!in.at_end()) return invalid_argument("{} bytes after the message", frame.size() - in.position());
  return message;
}

}  // namespace millrace::wire
