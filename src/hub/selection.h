// Which files of a repository a model needs.
//
// A repository with model.safetensors, or with shards and their index, is a Hugging Face folder: these, and the
// configuration, tokenizer and templates at its top. Other formats (.bin, .pth, ONNX, consolidated files) are left out.
// A repository of GGUF files has a choice for each quantization: one file, or shards, and the tower (mmproj) beside it.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hub/repository.h"

namespace millrace::hub {

inline constexpr std::string_view kCustomaryQuant = "Q4_K_M";  // taken where several are there and none is named
inline constexpr std::string_view kSafetensorsIndex = "model.safetensors.index.json";

// One model among GGUF files.
struct GgufChoice {
  std::string name;  // as a user names it: "Q4_K_M", or the file's name without .gguf where it has no such
  std::vector<std::string> files;  // the file, or its shards in sequence
};

// The models among the names, towers apart, sorted by name. Shards of which some are missing are none.
std::vector<GgufChoice> gguf_choices(const std::vector<std::string>& names);
// kNotFound, kInvalidArgument: the message lists them. `what`: the repository.
Result<GgufChoice> choose_gguf(const std::vector<GgufChoice>& choices, const std::string& quant,
                               const std::string& what);
// The tower among several for the model `file`: in its folder, F16 before BF16 before others; "": there is none.
std::string choose_tower(const std::vector<std::string>& names, const std::string& file);

struct Selection {
  std::vector<std::string> files;  // what is known at once; small ones first
  bool shards_by_index = false;    // the index is among them, and its shards are needed too
  std::optional<GgufChoice> gguf;  // nullopt: a Hugging Face folder
};

// kNotFound: it has no model that this program reads; the message has what there is.
Result<Selection> select_files(const std::vector<std::string>& names, const std::string& quant,
                               const std::string& what);

}  // namespace millrace::hub
