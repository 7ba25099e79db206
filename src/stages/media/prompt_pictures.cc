#include "stages/media/prompt_pictures.h"

#include <openssl/evp.h>

#include <algorithm>

#include "media/image.h"

namespace millrace {
namespace {

// Of all that decides the features: what it is, the size that it is brought to, the file.
std::string digest_of(const wire::PromptMedia& media) {
  const std::string head = fmt::format("image {} {} {}\n", media.grid_t, media.grid_h, media.grid_w);
  std::string out(wire::kMediaDigestBytes, '\0');
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  CHECK(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  CHECK(EVP_DigestUpdate(context.get(), head.data(), head.size()) == 1);
  CHECK(EVP_DigestUpdate(context.get(), media.bytes.bytes.data(), media.bytes.bytes.size()) == 1);
  CHECK(EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(out.data()), nullptr) == 1);
  return out;
}

// Of the picture as it is shown, from its header.
Result<ImageSize> read_size(const std::string& bytes) {
  ASSIGN_OR_RETURN(const ImageInfo info,
                   read_image_header({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
  const ImageLimits limits;
  const int64_t pixels = int64_t{info.width} * info.height;
  if (info.width < 1 || info.height < 1 || pixels > limits.pixels) {
    return invalid_argument("the picture has {} x {} pixels; wanted at least 1 and at most {}", info.width, info.height,
                            limits.pixels);
  }
  if (info.orientation >= 5) return ImageSize{info.height, info.width};
  return ImageSize{info.width, info.height};
}

}  // namespace

Result<wire::PromptMedia> read_picture(std::string bytes, bool low_detail, const PictureFacts& facts) {
  if (bytes.size() > wire::kMaxMediaBytes) {
    return error(StatusCode::kTooLarge, "the picture has {} bytes; wanted at most {}", bytes.size(),
                 wire::kMaxMediaBytes);
  }
  ASSIGN_OR_RETURN(const ImageSize stored, read_size(bytes));
  PatchConfig patches = facts.patches;
  if (low_detail) patches.max_pixels = std::max(patches.min_pixels, std::min(patches.max_pixels, kLowDetailPixels));
  ASSIGN_OR_RETURN(const PatchGrid grid, patch_grid(stored, patches));
  wire::PromptMedia out;
  out.grid_t = grid.t;
  out.grid_h = grid.h;
  out.grid_w = grid.w;
  out.rows = out.grid_h * out.grid_w / (patches.merge_size * patches.merge_size);
  out.bytes.bytes = std::move(bytes);
  out.digest.bytes = digest_of(out);
  return out;
}

Result<std::vector<int32_t>> expand_pictures(const std::vector<int32_t>& ids, const Pictures& pictures,
                                             int32_t token_id) {
  const auto wanted = pictures == nullptr ? 0 : static_cast<std::ptrdiff_t>(pictures->size());
  const auto seen = std::count(ids.begin(), ids.end(), token_id);
  if (wanted == 0) return ids;
  if (seen != wanted) {
    return invalid_argument("the chat template wrote {} placeholders for {} pictures; wanted one for each", seen,
                            wanted);
  }
  std::vector<int32_t> out;
  auto picture = pictures->begin();
  for (const int32_t id : ids) {
    out.insert(out.end(), id == token_id ? static_cast<std::size_t>((picture++)->rows) : 1, id);
  }
  return out;
}

std::vector<wire::PromptMedia> position_pictures(std::span<const int32_t> prompt, const Pictures& pictures,
                                                 int32_t token_id) {
  if (pictures == nullptr) return {};
  std::vector<wire::PromptMedia> out = *pictures;
  std::size_t at = 0;
  for (wire::PromptMedia& picture : out) {
    while (at < prompt.size() && prompt[at] != token_id) ++at;
    picture.begin = static_cast<int32_t>(at);
    at += static_cast<std::size_t>(picture.rows);
  }
  CHECK(at <= prompt.size());
  return out;
}

}  // namespace millrace
