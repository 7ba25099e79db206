#include "models/quantize_model.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/log.h"
#include "formats/gguf_writer.h"
#include "formats/pooling_config.h"
#include "formats/reranker_config.h"
#include "formats/weights.h"
#include "kernels/half.h"
#include "kernels/quantized.h"
#include "models/model.h"
#include "models/model_text.h"

namespace millrace {
namespace {

constexpr std::size_t kChunkBytes = 4u << 20;  // converted before it is written
constexpr uint32_t kQuantizationVersion = 2;   // of the format's blocks

struct TargetType {
  std::string_view name;
  DType dtype;
  uint32_t file_type;  // general.file_type: what most tensors are
};
constexpr std::array<TargetType, 5> kTypes = {{{"q8_0", DType::kQ8_0, 7},
                                               {"q4_0", DType::kQ4_0, 2},
                                               {"bf16", DType::kBF16, 32},
                                               {"f16", DType::kF16, 1},
                                               {"f32", DType::kF32, 0}}};

const TargetType& target_of(const std::string& name) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](const TargetType& type) { return type.name == name; });
}

// One tensor of the output: the sources lie one after the other in it.
struct Item {
  std::string name;
  std::vector<std::string> sources;  // several: stacked experts
  DType dtype = DType::kF32;
  Shape shape;
  int rope_heads = 0;
};

// Converts rows of one tensor and hands them to the writer.
class RowConverter {
 public:
  RowConverter(const TensorView& from, DType to, int64_t columns, GgufWriter& writer)
      : from_(from), to_(to), columns_(columns), writer_(writer), floats_(static_cast<std::size_t>(columns)) {
    out_.reserve(kChunkBytes + storage_bytes(to, columns));
  }

  Status row(int64_t index) {
    const std::size_t begin = out_.size();
    out_.resize(begin + storage_bytes(to_, columns_));
    const auto* source = static_cast<const std::byte*>(from_.data) +
                         static_cast<std::size_t>(index) * storage_bytes(from_.dtype, columns_);
    if (from_.dtype == to_) {
      std::memcpy(out_.data() + begin, source, out_.size() - begin);
    } else {
      convert(source, out_.data() + begin);
    }
    return out_.size() < kChunkBytes ? ok_status() : flush();
  }
  Status flush() {
    RETURN_IF_ERROR(writer_.write(out_));
    out_.clear();
    return ok_status();
  }

 private:
  void convert(const std::byte* source, std::byte* target) {
    if (is_quantized(from_.dtype)) {
      kernels::dequantize_row(from_.dtype, source, columns_, floats_.data());
    } else {
      for (int64_t i = 0; i < columns_; ++i) {
        floats_[static_cast<std::size_t>(i)] = kernels::load_weight(source, from_.dtype, i);
      }
    }
    if (is_quantized(to_)) return kernels::quantize_row(to_, floats_.data(), columns_, target);
    for (std::size_t i = 0; i < floats_.size(); ++i) {
      const float x = floats_[i];
      if (to_ == DType::kF32) {
        std::memcpy(target + i * sizeof x, &x, sizeof x);
        continue;
      }
      const uint16_t half = to_ == DType::kF16 ? kernels::f32_to_f16(x) : kernels::f32_to_bf16(x);
      std::memcpy(target + i * sizeof half, &half, sizeof half);
    }
  }

  const TensorView from_;
  const DType to_;
  const int64_t columns_;
  GgufWriter& writer_;
  std::vector<float> floats_;
  std::vector<std::byte> out_;
};

class Quantizer {
 public:
  Quantizer(const QuantizeOptions& options, const TargetType& type, const WriteProgress& progress)
      : options_(options), type_(type), progress_(progress) {}
  Status run();

 private:
  Status open();
  Status plan();
  DType dtype_of(const std::string& name, const TensorView& view) const;
  Status write_general();
  Status write_text();
  Status copy_text();
  Status write_ids(const TokenizerTables& tables);
  Status write_item(const Item& item);
  Status add_read(uint64_t bytes);

  const QuantizeOptions& options_;
  const TargetType& type_;
  const WriteProgress& progress_;
  uint64_t done_ = 0, total_ = 0;  // bytes of the tensors to write, as they are read
  ModelDir dir_;
  std::optional<GgufModel> gguf_;
  std::shared_ptr<WeightStore> store_;
  std::vector<Item> items_;
  GgufWriter writer_;
};

// The embedding of a GGUF file is the last token's row, of length 1: another one would be lost, and silently.
Status check_embeddings(const std::string& path) {
  const auto pooling = read_pooling_config(path);
  if (pooling.ok() && pooling->normalizes) return ok_status();
  if (pooling.ok()) {
    return error(StatusCode::kUnsupported,
                 "{}/modules.json: embeddings that are not normalized; wanted what a GGUF file can hold", path);
  }
  // Of a reranker that lists its own modules, they are of no use.
  ASSIGN_OR_RETURN(const auto reranker, read_reranker_config(path));
  return reranker ? ok_status() : pooling.status();
}

Status Quantizer::open() {
  ASSIGN_OR_RETURN(dir_, open_model_dir(options_.input));
  if (!dir_.gguf.empty()) {
    ASSIGN_OR_RETURN(gguf_, GgufModel::open(dir_.gguf));
  } else {
    RETURN_IF_ERROR(check_embeddings(options_.input));
  }
  ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(options_.input));
  store_ = std::make_shared<WeightStore>(std::move(store));
  // Every name and shape is checked as it is for serving; nothing is computed.
  RETURN_IF_ERROR(load_model(dir_.config, store_).status());
  return store_->check_finite();
}

DType Quantizer::dtype_of(const std::string& name, const TensorView& view) const {
  // Routers are small and decide much.
  if (view.shape.rank() < 2 || name.ends_with(".mlp.gate.weight")) return DType::kF32;
  const bool every_token = name == "model.embed_tokens.weight" || name == "lm_head.weight";
  const DType wanted = type_.dtype == DType::kQ4_0 && every_token ? DType::kQ8_0 : type_.dtype;
  const int64_t block = dtype_block(wanted).elements;
  return block > 0 && view.shape[1] % block != 0 ? DType::kF16 : wanted;
}

Status Quantizer::plan() {
  for (const std::string& name : store_->names()) {
    if (name.ends_with(".rotary_emb.inv_freq")) continue;
    if (name == "lm_head.weight" && dir_.config.tie_word_embeddings) continue;
    const std::string_view kExperts = ".mlp.experts.";
    const std::size_t experts = name.find(kExperts);
    std::string pattern = name;
    if (experts != std::string::npos) {
      const std::size_t number = experts + kExperts.size(), dot = name.find('.', number);
      if (name.substr(number, dot - number) != "0") continue;  // stacked with the first
      pattern.replace(number, dot - number, "{}");
    }
    ASSIGN_OR_RETURN(const TensorView view, store_->get_any(name));
    Item item{
        gguf_tensor_name(pattern), {name}, dtype_of(name, view), view.shape, rope_permuted_heads(dir_.config, name)};
    if (experts != std::string::npos) {
      const std::size_t number = pattern.find("{}");
      for (int i = 1; i < dir_.config.num_experts; ++i) {
        item.sources.push_back(std::string(pattern).replace(number, 2, std::to_string(i)));
      }
      item.shape = Shape{dir_.config.num_experts, view.shape[0], view.shape[1]};
    }
    items_.push_back(std::move(item));
  }
  for (const Item& item : items_) writer_.add_tensor(item.name, item.dtype, item.shape);
  if (dir_.config.rope.type == RopeType::kLlama3) {
    writer_.add_tensor("rope_freqs.weight", DType::kF32, Shape{dir_.config.head_dim / 2});
  }
  return ok_status();
}

Status Quantizer::write_general() {
  writer_.add_string("general.architecture", gguf_architecture(dir_.config.architecture));
  writer_.add_string("general.type", "model");
  writer_.add_u32("general.file_type", type_.file_type);
  if (is_quantized(type_.dtype)) writer_.add_u32("general.quantization_version", kQuantizationVersion);
  RETURN_IF_ERROR(write_gguf_config(dir_.config, dir_.generation, writer_).with_prefix(options_.input));
  if (gguf_) {
    for (const auto& [key, value] : gguf_->header().metadata) {
      const bool computed = key == "general.alignment" || key == "general.quantization_version";
      if (key.starts_with("general.") && !computed && !writer_.has(key)) writer_.add_value(key, value);
    }
  }
  if (writer_.has("general.name")) return ok_status();
  std::filesystem::path path = std::filesystem::absolute(options_.input).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  writer_.add_string("general.name", path.filename().string());
  return ok_status();
}

Status Quantizer::copy_text() {
  RETURN_IF_ERROR(load_tokenizer(options_.input).status());  // what cannot be served is not passed on
  for (const auto& [key, value] : gguf_->header().metadata) {
    if (key.starts_with("tokenizer.")) writer_.add_value(key, value);
  }
  return ok_status();
}

Status Quantizer::write_ids(const TokenizerTables& tables) {
  const auto id = [this](const char* name, const std::optional<int32_t>& value) {
    if (value) writer_.add_u32(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint32_t>(*value));
  };
  const ModelConfig& config = dir_.config;
  std::vector<int32_t> ends = config.eos_token_ids;
  if (tables.eos) ends.insert(ends.begin(), *tables.eos);
  ends.insert(ends.end(), dir_.generation.eos_token_ids.begin(), dir_.generation.eos_token_ids.end());
  std::vector<int32_t> unique;
  for (const int32_t end : ends) {
    if (std::find(unique.begin(), unique.end(), end) == unique.end()) unique.push_back(end);
  }
  id("bos", tables.bos ? tables.bos : config.bos_token_id);
  constexpr std::array<const char*, 3> kEnds = {"eos", "eot", "eom"};
  for (std::size_t i = 0; i < unique.size() && i < kEnds.size(); ++i) id(kEnds[i], unique[i]);
  if (unique.size() > kEnds.size()) {
    LOG_WARNING("{} tokens end a text; a GGUF file names {} of them", unique.size(), kEnds.size());
  }
  id("padding", tables.pad ? tables.pad : config.pad_token_id);
  id("unknown", tables.unk);
  return ok_status();
}

Status Quantizer::write_text() {
  if (gguf_) return copy_text();
  const auto loaded = load_tokenizer_tables(options_.input, dir_.config.vocab_size);
  if (loaded.status().code() == StatusCode::kUnsupported) {
    return error(StatusCode::kUnsupported, "{}; serve the folder itself, with --quantize for smaller weights",
                 loaded.status().message());
  }
  RETURN_IF_ERROR(loaded.status());
  const TokenizerTables& tables = *loaded;
  writer_.add_string("tokenizer.ggml.model", tables.model);
  writer_.add_string("tokenizer.ggml.pre", tables.pre);
  writer_.add_strings("tokenizer.ggml.tokens", tables.tokens);
  writer_.add_i32s("tokenizer.ggml.token_type", tables.kinds);
  if (tables.model == "llama") {
    writer_.add_f32s("tokenizer.ggml.scores", tables.scores);
    writer_.add_bool("tokenizer.ggml.add_space_prefix", tables.add_space_prefix);
  } else {
    writer_.add_strings("tokenizer.ggml.merges", tables.merges);
  }
  RETURN_IF_ERROR(write_ids(tables));
  writer_.add_bool("tokenizer.ggml.add_bos_token", tables.add_bos.value_or(false));
  writer_.add_bool("tokenizer.ggml.add_eos_token", tables.add_eos.value_or(false));
  const auto chat = load_chat_template(options_.input);
  if (!chat.ok()) {
    LOG_WARNING("no chat template: {}", chat.status().message());
  } else if (chat->has_value()) {
    writer_.add_string("tokenizer.chat_template", (*chat)->source());
    if ((*chat)->source(true) != (*chat)->source()) {
      writer_.add_string("tokenizer.chat_template.tool_use", (*chat)->source(true));
    }
  }
  return ok_status();
}

// Between two calls of the progress a large matrix has kChunkBytes.
Status Quantizer::add_read(uint64_t bytes) {
  const bool due = done_ / kChunkBytes != (done_ + bytes) / kChunkBytes || done_ + bytes == total_;
  done_ += bytes;
  if (!due || progress_(done_, total_)) return ok_status();
  return error(StatusCode::kCancelled, "stopped; nothing is left behind");
}

Status Quantizer::write_item(const Item& item) {
  for (const std::string& source : item.sources) {
    ASSIGN_OR_RETURN(const TensorView view, store_->get_any(source));
    const bool matrix = view.shape.rank() == 2;
    const int64_t rows = view.shape.rank() == 0 ? 1 : view.shape[0];
    RowConverter converter(view, item.dtype, matrix ? view.shape[1] : 1, writer_);
    // The file has the two halves of a head interleaved: row 2 j + s of a head is row s * half + j of the folder.
    const int64_t head = item.rope_heads > 0 ? rows / item.rope_heads : 1;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t inside = row % head;
      const int64_t from = item.rope_heads > 0 ? row - inside + (inside % 2) * (head / 2) + inside / 2 : row;
      RETURN_IF_ERROR(converter.row(from));
      RETURN_IF_ERROR(add_read(storage_bytes(view.dtype, matrix ? view.shape[1] : 1)));
    }
    RETURN_IF_ERROR(converter.flush());
    store_->release(source);
  }
  return ok_status();
}

Status Quantizer::run() {
  RETURN_IF_ERROR(open());
  RETURN_IF_ERROR(write_general());
  RETURN_IF_ERROR(write_text());
  RETURN_IF_ERROR(plan());
  RETURN_IF_ERROR(writer_.begin(options_.output,
                                options_.overwrite ? GgufWriter::Existing::kReplace : GgufWriter::Existing::kKeep));
  for (const Item& item : items_) {
    for (const std::string& source : item.sources) {
      ASSIGN_OR_RETURN(const TensorView view, store_->get_any(source));
      total_ += storage_bytes(view.dtype, view.shape.elements());
    }
  }
  for (const Item& item : items_) RETURN_IF_ERROR(write_item(item));
  if (dir_.config.rope.type == RopeType::kLlama3) {
    const std::vector<float> factors = llama3_rope_factors(dir_.config.rope, dir_.config.head_dim);
    RETURN_IF_ERROR(writer_.write(std::as_bytes(std::span(factors))));
  }
  RETURN_IF_ERROR(store_->verify_unchanged());
  return writer_.finish();
}

}  // namespace

Status quantize_model(const QuantizeOptions& options, const WriteProgress& progress) {
  if (!options.output.ends_with(".gguf")) {
    return invalid_argument("output is {}; wanted a name that ends with .gguf", options.output);
  }
  struct stat info {};
  if (!options.overwrite && ::stat(options.output.c_str(), &info) == 0) {
    return error(StatusCode::kConflict, "{}: is there already; wanted a new name, or --overwrite", options.output);
  }
  return Quantizer(options, target_of(options.type), progress).run();
}

}  // namespace millrace
