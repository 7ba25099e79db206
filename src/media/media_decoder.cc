#include "media/media_decoder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>
#include <new>
#include <optional>

#include "base/file_descriptor.h"
#include "base/log.h"
#include "media/child_program.h"

namespace millrace {
namespace {

// A sanitizer reserves terabytes of it, of which few are used.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kAddressSpace = RLIM_INFINITY;
#else
constexpr std::size_t kAddressSpace = kDecodeMediaBytes;
#endif
constexpr uint32_t kMagic = 0x4d4c4431;  // of an answer; another program's output is none

// How an answer begins, in the bytes of this machine: both sides are the same program.
struct AnswerHeader {
  uint32_t magic = kMagic;
  int32_t code = 0;                // a StatusCode; 0: what was decoded follows, else a text
  uint32_t width = 0, height = 0;  // of a picture
  uint64_t bytes = 0;              // that follow
};

// ---- the process that decodes

bool write_all(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

int answer(AnswerHeader header, std::span<const uint8_t> bytes) {
  header.bytes = bytes.size();
  const auto* raw = reinterpret_cast<const uint8_t*>(&header);
  return write_all({raw, sizeof header}) && write_all(bytes) ? 0 : 1;
}

int answer(const Status& status) {
  const std::string text = status.message().substr(0, kMaxDecodeErrorBytes);
  return answer({.code = static_cast<int32_t>(status.code())},
                {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

template <typename Number>
bool read_number(const std::string& word, Number& out) {
  const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), out);
  return failed == std::errc() && end == word.data() + word.size();
}

std::vector<std::string> words_of(const AudioLimits& limits) {
  return {"speech",
          fmt::format("{}", limits.max_bytes),
          fmt::format("{}", limits.max_seconds),
          fmt::format("{}", limits.max_channels),
          fmt::format("{}", limits.min_rate),
          fmt::format("{}", limits.max_rate)};
}

std::optional<AudioLimits> limits_of(const std::vector<std::string>& words) {
  AudioLimits out;
  const bool good = words.size() == 6 && read_number(words[1], out.max_bytes) &&
                    read_number(words[2], out.max_seconds) && read_number(words[3], out.max_channels) &&
                    read_number(words[4], out.min_rate) && read_number(words[5], out.max_rate);
  return good ? std::optional(out) : std::nullopt;
}

// As long as the process lives; empty where there is nothing.
std::span<const uint8_t> map_input() {
  const FileDescriptor file(::open(kChildInput, O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) return {};
  const auto size = static_cast<std::size_t>(info.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return {};
  return {static_cast<const uint8_t*>(data), size};
}

int decode(const std::vector<std::string>& words) {
  const std::span<const uint8_t> bytes = map_input();
  if (words.size() == 1 && words[0] == "picture") {
    const Result<Image> image = decode_image(bytes);
    if (!image.ok()) return answer(image.status());
    return answer({.width = static_cast<uint32_t>(image->width()), .height = static_cast<uint32_t>(image->height())},
                  image->bytes());
  }
  const std::optional<AudioLimits> limits = limits_of(words);
  if (!limits) return 2;
  const Result<std::vector<float>> samples = decode_audio(bytes, *limits);
  if (!samples.ok()) return answer(samples.status());
  return answer({}, {reinterpret_cast<const uint8_t*>(samples->data()), samples->size() * sizeof(float)});
}

// ---- this process

// What comes of the process, of which nothing is believed.
class Answer {
 public:
  // `accept`: memory for so many bytes, or why it cannot be.
  using Accept = std::function<Result<std::span<uint8_t>>(const AnswerHeader&)>;
  explicit Answer(Accept accept) : accept_(std::move(accept)) {}

  Status on_output(std::span<const uint8_t> bytes) {
    const std::size_t of_header = std::min(sizeof(AnswerHeader) - have_, bytes.size());
    std::memcpy(reinterpret_cast<uint8_t*>(&header_) + have_, bytes.data(), of_header);
    have_ += of_header;
    bytes = bytes.subspan(of_header);
    if (have_ < sizeof(AnswerHeader)) return ok_status();
    if (of_header > 0) RETURN_IF_ERROR(begin());
    if (bytes.size() > to_.size()) return invalid_argument("its decoder sent more bytes than it announced");
    std::copy(bytes.begin(), bytes.end(), to_.begin());
    to_ = to_.subspan(bytes.size());
    return ok_status();
  }

  // After the process has ended well.
  Status finish() const {
    if (have_ < sizeof(AnswerHeader) || !to_.empty())
      return invalid_argument("its decoder sent fewer bytes than it announced");
    if (header_.code == 0) return ok_status();
    std::string text = error_;
    // Untrusted, too.
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    }
    for (const StatusCode code : {StatusCode::kTooLarge, StatusCode::kUnsupported, StatusCode::kResourceExhausted}) {
      if (header_.code == static_cast<int32_t>(code)) return Status(code, std::move(text));
    }
    return Status(StatusCode::kInvalidArgument, std::move(text));
  }

 private:
  Status begin() {
    if (header_.magic != kMagic) return invalid_argument("its decoder sent no answer");
    if (header_.code == 0) {
      ASSIGN_OR_RETURN(to_, accept_(header_));
    } else {
      error_.resize(std::min<uint64_t>(header_.bytes, kMaxDecodeErrorBytes));
      to_ = {reinterpret_cast<uint8_t*>(error_.data()), error_.size()};
    }
    if (to_.size() == header_.bytes) return ok_status();
    return invalid_argument("its decoder sent {} bytes; wanted {}", header_.bytes, to_.size());
  }

  const Accept accept_;
  AnswerHeader header_;
  std::size_t have_ = 0;   // of the header
  std::span<uint8_t> to_;  // what is missing
  std::string error_;
};

struct Run {
  Status status;
  bool started = true;  // false: this host starts no such process
};

Run run(const std::string& program, std::vector<std::string> words, std::span<const uint8_t> bytes,
        const MediaDecoder::Cancelled& cancelled, Answer::Accept accept) {
  std::vector<std::string> arguments = {program, kDecodeMediaCommand};
  arguments.insert(arguments.end(), std::make_move_iterator(words.begin()), std::make_move_iterator(words.end()));
  const ChildLimits limits{.address_space = kAddressSpace,
                           .cpu_seconds = kDecodeMediaSeconds,
                           .time = std::chrono::seconds(kDecodeMediaSeconds),
                           .cancelled = cancelled};
  Answer answer(std::move(accept));
  const Status ran =
      run_child(arguments, bytes, limits, [&answer](std::span<const uint8_t> part) { return answer.on_output(part); });
  if (ran.code() == StatusCode::kInternal || ran.code() == StatusCode::kUnsupported) return {ran, false};
  return {ran.ok() ? answer.finish() : ran};
}

// A picture within the limits of decode_image().
Result<std::span<uint8_t>> accept_picture(const AnswerHeader& header, Image& image) {
  const ImageLimits limits;
  const uint64_t edge = static_cast<uint64_t>(limits.edge), pixels = uint64_t{header.width} * header.height;
  if (header.width == 0 || header.height == 0 || header.width > edge || header.height > edge ||
      pixels > static_cast<uint64_t>(limits.pixels)) {
    return invalid_argument("its decoder sent {} x {} pixels; wanted at most {}", header.width, header.height,
                            limits.pixels);
  }
  image = Image(static_cast<int>(header.width), static_cast<int>(header.height));
  return std::span<uint8_t>{image.row(0), image.size_bytes()};
}

Result<std::span<uint8_t>> accept_speech(const AnswerHeader& header, const AudioLimits& limits,
                                         std::vector<float>& samples) {
  const uint64_t count = header.bytes / sizeof(float);
  const double most = limits.max_seconds * kSpeechRate + kSpeechRate;  // a resampler may add some
  if (static_cast<double>(count) > most) {
    return invalid_argument("its decoder sent {} samples; wanted at most {:.0f}", count, most);
  }
  samples.resize(count);
  return std::span<uint8_t>{reinterpret_cast<uint8_t*>(samples.data()), samples.size() * sizeof(float)};
}

}  // namespace

void decode_media(const std::vector<std::string>& words) {
  int status = 0;
  try {
    status = decode(words);
  } catch (const std::bad_alloc&) {
    status =
        answer(error(StatusCode::kResourceExhausted, "it needs over {} MiB to be decoded", kDecodeMediaBytes >> 20));
  }
  ::_exit(status);  // at once: in the sandbox a sanitizer cannot look for leaks
}

void MediaDecoder::give_up(const Status& why) const {
  if (unavailable_.exchange(true)) return;
  LOG_WARNING("pictures and audio are decoded in this process, without a sandbox: {}", why.message());
}

Result<Image> MediaDecoder::picture(std::span<const uint8_t> bytes, const Cancelled& cancelled) const {
  if (apart()) {
    Image image;
    const Run ran = run(program_, {"picture"}, bytes, cancelled,
                        [&image](const AnswerHeader& header) { return accept_picture(header, image); });
    if (ran.status.ok()) return image;
    if (ran.started) return ran.status;
    give_up(ran.status);
  }
  return decode_image(bytes);
}

Result<std::vector<float>> MediaDecoder::speech(std::span<const uint8_t> bytes, const AudioLimits& limits,
                                                const Cancelled& cancelled) const {
  if (apart()) {
    std::vector<float> samples;
    const Run ran = run(program_, words_of(limits), bytes, cancelled,
                        [&](const AnswerHeader& header) { return accept_speech(header, limits, samples); });
    if (ran.status.ok()) return samples;
    if (ran.started) return ran.status;
    give_up(ran.status);
  }
  return decode_audio(bytes, limits);
}

}  // namespace millrace
