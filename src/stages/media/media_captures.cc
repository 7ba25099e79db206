#include "stages/media/media_captures.h"

#include <openssl/evp.h>

#include <cstring>

#include "base/status.h"

namespace millrace {
namespace {

// SHA-256 over a prompt that grows; each digest is of all so far.
class PromptHash {
 public:
  PromptHash() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void add(const void* bytes, std::size_t size) { CHECK(EVP_DigestUpdate(context_.get(), bytes, size) == 1); }
  std::string digest() const {
    std::string out(static_cast<std::size_t>(EVP_MD_size(EVP_sha256())), '\0');
    const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> copy(EVP_MD_CTX_new(), EVP_MD_CTX_free);
    CHECK(EVP_MD_CTX_copy_ex(copy.get(), context_.get()) == 1);
    CHECK(EVP_DigestFinal_ex(copy.get(), reinterpret_cast<unsigned char*>(out.data()), nullptr) == 1);
    return out;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

std::size_t bytes_of(const std::vector<float>& values) { return values.size() * sizeof(float); }

}  // namespace

MediaCaptures::Wanted MediaCaptures::begin(std::span<const int32_t> prompt, const PromptInput& input,
                                           uint64_t weight_version) {
  Wanted out{.capture = std::make_shared<RowCapture>(), .keys = {}, .weight_version = weight_version};
  out.capture->layer = layer_;
  out.capture->hidden_size = hidden_size_;
  PromptHash hash;
  hash.add(&weight_version, sizeof(weight_version));
  std::size_t hashed = 0;
  for (const MediaSpan& span : input.spans) {
    // Text up to the span, then what the span is; the counts keep two prompts apart that hash the same bytes.
    const auto begin = static_cast<std::size_t>(span.begin);
    const int64_t counts[] = {static_cast<int64_t>(begin - hashed), span.features.rows,
                              static_cast<int64_t>(span.digest.size())};
    hash.add(counts, sizeof(counts));
    hash.add(prompt.data() + hashed, (begin - hashed) * sizeof(int32_t));
    hash.add(span.digest.data(), span.digest.size());
    hashed = static_cast<std::size_t>(span.end());
    out.keys.push_back(hash.digest());
    CapturedSpan captured{.begin = span.begin, .rows = span.features.rows};
    const auto* known = cache_.find(out.keys.back());
    captured.known = known != nullptr;
    const auto size = static_cast<std::size_t>(captured.rows * hidden_size_);
    captured.values = captured.known ? *known : std::make_shared<std::vector<float>>(size);
    ++(captured.known ? found_ : captured_);
    out.capture->spans.push_back(std::move(captured));
  }
  return out;
}

SharedTensor MediaCaptures::finish(const Wanted& wanted, uint64_t weight_version) {
  int64_t rows = 0;
  for (const CapturedSpan& span : wanted.capture->spans) rows += span.rows;
  Buffer bytes(static_cast<std::size_t>(rows * hidden_size_) * sizeof(float));
  char* to = bytes.as<char>().data();
  for (std::size_t i = 0; i < wanted.keys.size(); ++i) {
    const std::shared_ptr<std::vector<float>>& values = wanted.capture->spans[i].values;
    std::memcpy(to, values->data(), bytes_of(*values));
    to += bytes_of(*values);
    if (weight_version == wanted.weight_version) cache_.keep(wanted.keys[i], values, bytes_of(*values));
  }
  return {.dtype = DType::kF32, .shape = {rows, hidden_size_}, .bytes = SharedBytes(std::move(bytes))};
}

void MediaCaptures::describe(std::vector<wire::Metric>& metrics) const {
  metrics.push_back({"captured_media_total", static_cast<double>(captured_)});
  metrics.push_back({"captured_media_cache_hits_total", static_cast<double>(found_)});
  metrics.push_back({"captured_media_cache_bytes", static_cast<double>(cache_.bytes())});
}

}  // namespace millrace
