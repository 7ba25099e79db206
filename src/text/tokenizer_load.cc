// Loading a Tokenizer: tokenizer.json and tokenizer_config.json.
//
// The file is walked once to find where its members lie. The small ones are parsed to trees by parse_json; model.vocab
// and model.merges, nearly all of the file, are read in place.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "text/component_json.h"
#include "text/tokenizer_impl.h"

namespace millrace {
namespace {

using Members = std::map<std::string, std::string_view, std::less<>>;

Result<std::string> read_file(const std::string& path, size_t limit) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) {
    const int why = errno;
    return error(why == ENOENT ? StatusCode::kNotFound : StatusCode::kInvalidArgument, "{}: {}; wanted a readable file",
                 path, std::strerror(why));
  }
  std::string text;
  constexpr size_t kChunkBytes = size_t{1} << 20;
  while (true) {
    const size_t before = text.size();
    // Read in chunks and not by the size that the file system reports: a pipe has none, and a file may grow meanwhile.
    // So the limit holds for what was read.
    text.resize(before + kChunkBytes);
    const size_t got = std::fread(text.data() + before, 1, kChunkBytes, file.get());
    text.resize(before + got);
    if (text.size() > limit) return error(StatusCode::kTooLarge, "{}: over {} bytes; wanted at most that", path, limit);
    if (got < kChunkBytes) break;
  }
  if (std::ferror(file.get()) != 0) return invalid_argument("{}: cannot be read; wanted a file", path);
  return text;
}

// The members of the object at `cursor`, as slices of the file.
Result<Members> read_members(JsonCursor& cursor) {
  Members members;
  std::string key;
  RETURN_IF_ERROR(cursor.enter('{'));
  while (true) {
    ASSIGN_OR_RETURN(const bool more, cursor.next_member(key));
    if (!more) return members;
    ASSIGN_OR_RETURN(const std::string_view value, cursor.skip_value());
    // Of two members of one name JSON parsers take different ones; such a file would be another tokenizer elsewhere.
    if (!members.emplace(key, value).second)
      return invalid_argument("the member \"{}\" stands twice; wanted once", key);
  }
}

class Loader {
 public:
  explicit Loader(std::string_view file) : file_(file), impl_(std::make_unique<Tokenizer::Impl>()) {}

  Result<std::unique_ptr<Tokenizer::Impl>> run(std::string_view config_text);

 private:
  Result<Json> parse(const Members& members, std::string_view name) const;
  JsonCursor cursor_at(std::string_view slice) const {
    // The slice's offset in the file goes along, so that errors name the byte of the file.
    return JsonCursor(slice, static_cast<size_t>(slice.data() - file_.data()));
  }
  template <typename Part>
  Status load_component(const Members& members, std::string_view name, Part& out) const;
  Status load_vocab(std::string_view slice);
  Status load_added(const Json& list);
  Status add(AddedToken token);
  Status load_model();
  Status load_config(const Json& config);
  Status load_added_decoder(const Json& config);
  Status load_named(const Json& config, std::string_view key, Tokenizer::Impl::NamedToken& out);
  Status load_chat_template(const Json& config);
  Status check_ids() const;

  std::string_view file_;
  std::unique_ptr<Tokenizer::Impl> impl_;
  Members top_;
  Members model_;
};

Result<Json> Loader::parse(const Members& members, std::string_view name) const {
  const auto at = members.find(name);
  // A member that is missing and one that is null mean the same in these files.
  if (at == members.end()) return Json();
  Result<Json> json = parse_json(at->second);
  if (!json.ok()) return json.status().with_prefix(name);
  return json;
}

template <typename Part>
Status Loader::load_component(const Members& members, std::string_view name, Part& out) const {
  ASSIGN_OR_RETURN(const Json json, parse(members, name));
  Result<Part> part = Part::parse(json);
  if (!part.ok()) return part.status().with_prefix(name);
  out = std::move(part).value();
  return ok_status();
}

Status Loader::load_vocab(std::string_view slice) {
  JsonCursor cursor = cursor_at(slice);
  // A token takes about ten bytes in the file, so this is close; it only avoids growing.
  impl_->model.reserve(slice.size() / 16, slice.size() / 2);
  RETURN_IF_ERROR(cursor.enter('{'));
  std::string text;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, cursor.next_member(text));
    if (!more) break;
    int64_t id = 0;
    if (const Status status = cursor.read_integer(id); !status.ok())
      return status.with_prefix("the id of \"" + text + "\"");
    RETURN_IF_ERROR(impl_->model.add(text, id));
  }
  if (impl_->model.count() == 0) return invalid_argument("it is empty; wanted at least one token");
  return cursor.expect_end();
}

Status Loader::add(AddedToken token) {
  // An added token may repeat an entry of the model, then with the same id. Anything else would give one text two ids,
  // or one id two texts, and decode() could not return what encode() took.
  const int32_t known = impl_->model.find(token.content);
  if (known != Vocab::kNone && known != token.id) {
    return invalid_argument("\"{}\" has id {} here and {} in model.vocab; wanted the same", token.content, token.id,
                            known);
  }
  if (known == Vocab::kNone && impl_->model.has(token.id)) {
    return invalid_argument("\"{}\" has id {}, which is \"{}\" in model.vocab; wanted a free id", token.content,
                            token.id, impl_->model.text(token.id));
  }
  RETURN_IF_ERROR(impl_->added.add(token.content, token.id));
  const auto index = static_cast<size_t>(token.id);
  // The id is below kMaxVocab, as added.add() has checked, so a file cannot make this large.
  if (impl_->flags.size() <= index) impl_->flags.resize(index + 1);
  impl_->flags[index] = static_cast<uint8_t>(Tokenizer::Impl::kAdded | (token.special ? Tokenizer::Impl::kSpecial : 0) |
                                             (token.control ? Tokenizer::Impl::kControl : 0));
  // Two sets, as the search runs at two moments: before the normalizer over the input, and after it over its result.
  if (!token.normalized) {
    impl_->plain.add(std::move(token));
    return ok_status();
  }
  MarkedText content{token.content, {}};
  RegexScratch scratch;
  RETURN_IF_ERROR(impl_->normalizer.apply(content, scratch));
  // What is searched for in normalized text must be normalized itself, and decode() shows it in that form, as the
  // reference does.
  if (content.bytes != token.content) impl_->normalized_texts.emplace(token.id, content.bytes);
  if (content.bytes.empty()) return ok_status();  // nothing can match it
  token.content = content.bytes;
  impl_->normalized.add(std::move(token));
  return ok_status();
}

Status Loader::load_added(const Json& list) {
  if (list.is_null()) return ok_status();
  if (!list.is_array()) return invalid_argument("added_tokens is a {}; wanted an array", json_type_name(list));
  if (list.size() > kMaxAddedTokens) {
    return error(StatusCode::kTooLarge, "added_tokens has {} entries; wanted at most {}", list.size(), kMaxAddedTokens);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    Result<AddedToken> token = parse_added_token(list[i], std::nullopt);
    if (!token.ok()) return token.status().with_prefix(fmt::format("added_tokens[{}]", i));
    if (const Status status = add(std::move(token).value()); !status.ok()) {
      return status.with_prefix(fmt::format("added_tokens[{}]", i));
    }
  }
  return ok_status();
}

// added_tokens_decoder of tokenizer_config.json repeats added_tokens; old exports have some tokens only there.
Status Loader::load_added_decoder(const Json& config) {
  const Json* decoder = json_find(config, "added_tokens_decoder");
  if (decoder == nullptr) return ok_status();
  if (!decoder->is_object())
    return invalid_argument("added_tokens_decoder is a {}; wanted an object", json_type_name(*decoder));
  if (decoder->size() > kMaxAddedTokens) {
    return error(StatusCode::kTooLarge, "added_tokens_decoder has {} entries; wanted at most {}", decoder->size(),
                 kMaxAddedTokens);
  }
  for (const auto& [key, value] : decoder->items()) {
    const std::string where = "added_tokens_decoder[\"" + key + "\"]";
    JsonCursor cursor(key);
    int64_t id = -1;
    if (!cursor.read_integer(id).ok() || !cursor.expect_end().ok())
      return invalid_argument("{}: wanted an id as key", where);
    Result<AddedToken> token = parse_added_token(value, id);
    if (!token.ok()) return token.status().with_prefix(where);
    // tokenizer.json wins where both files name the token or the id.
    if (impl_->added.find(token->content) != Vocab::kNone || impl_->added.has(token->id)) continue;
    if (const Status status = add(std::move(token).value()); !status.ok()) return status.with_prefix(where);
  }
  return ok_status();
}

Status Loader::load_model() {
  BpeOptions options;
  // Not stated in the model: whether words are raw bytes follows from the pre-tokenizer.
  options.byte_level = impl_->pre_tokenizer.byte_level();
  for (const auto& [key, out] : {std::pair<std::string_view, bool*>{"byte_fallback", &options.byte_fallback},
                                 {"fuse_unk", &options.fuse_unk},
                                 {"ignore_merges", &options.ignore_merges}}) {
    ASSIGN_OR_RETURN(const Json value, parse(model_, key));
    if (value.is_null()) continue;
    if (!value.is_boolean()) return invalid_argument("model.{} is a {}; wanted a boolean", key, json_type_name(value));
    *out = value.get<bool>();
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ASSIGN_OR_RETURN(const Json value, parse(model_, key));
    // Marks of parts of words, such as "##" and "</w>". With one of them set the ids would differ, so it is refused and
    // not ignored.
    if (value.is_null() || value == "") continue;
    return error(StatusCode::kUnsupported, "model.{} is {}; wanted null or \"\"", key, value.dump());
  }
  ASSIGN_OR_RETURN(const Json dropout, parse(model_, "dropout"));
  if (!dropout.is_null() && dropout != 0) {
    return error(StatusCode::kUnsupported, "model.dropout is {}; wanted null: it makes ids random", dropout.dump());
  }
  ASSIGN_OR_RETURN(const Json unk, parse(model_, "unk_token"));
  if (unk.is_string()) {
    options.unk_id = impl_->model.find(unk.get_ref<const std::string&>());
    if (options.unk_id == Vocab::kNone)
      return invalid_argument("model.unk_token is {}; wanted a token of model.vocab", unk.dump());
  } else if (!unk.is_null()) {
    return invalid_argument("model.unk_token is a {}; wanted a string or null", json_type_name(unk));
  }
  // An added token may be an entry of the model too, and the merges could then build it out of a user's text. The BPE
  // model gets the marks, so that guarded words never yield it.
  std::vector<uint8_t> control(static_cast<size_t>(impl_->model.size()));
  for (size_t id = 0; id < std::min(control.size(), impl_->flags.size()); ++id) {
    control[id] = (impl_->flags[id] & Tokenizer::Impl::kControl) != 0;
  }
  ASSIGN_OR_RETURN(impl_->bpe,
                   BpeModel::create(impl_->model, options, cursor_at(model_.at("merges")), std::move(control)));
  return ok_status();
}

Status Loader::load_named(const Json& config, std::string_view key, Tokenizer::Impl::NamedToken& out) {
  const Json* value = json_find(config, key);
  if (value == nullptr) return ok_status();
  // A string, or an added token with its flags, of which only the text counts here.
  if (value->is_object()) {
    ASSIGN_OR_RETURN(out.text, required_string(*value, "content"));
  } else {
    RETURN_IF_ERROR(json_read(config, key, out.text));
  }
  int32_t id = impl_->added.find(out.text);
  if (id == Vocab::kNone) id = impl_->model.find(out.text);
  // A text that is no token stays without an id: some files name a pad token that their vocabulary does not have.
  if (id != Vocab::kNone) out.id = id;
  return ok_status();
}

Status Loader::load_chat_template(const Json& config) {
  const Json* value = json_find(config, "chat_template");
  if (value == nullptr) return ok_status();
  if (value->is_string()) {
    impl_->chat_template = value->get<std::string>();
    return ok_status();
  }
  if (!value->is_array())
    return invalid_argument("chat_template is a {}; wanted a string or a list", json_type_name(*value));
  for (const Json& entry : *value) {
    if (!entry.is_object())
      return invalid_argument("an entry of chat_template is a {}; wanted an object", json_type_name(entry));
    ASSIGN_OR_RETURN(const std::string name, required_string(entry, "name"));
    if (name != "default") continue;
    ASSIGN_OR_RETURN(impl_->chat_template, required_string(entry, "template"));
  }
  return ok_status();
}

Status Loader::load_config(const Json& config) {
  RETURN_IF_ERROR(load_named(config, "bos_token", impl_->bos));
  RETURN_IF_ERROR(load_named(config, "eos_token", impl_->eos));
  RETURN_IF_ERROR(load_named(config, "pad_token", impl_->pad));
  RETURN_IF_ERROR(load_named(config, "unk_token", impl_->unk));
  RETURN_IF_ERROR(load_chat_template(config));
  if (json_find(config, "add_bos_token") != nullptr) {
    bool add = false;
    RETURN_IF_ERROR(json_read(config, "add_bos_token", add));
    impl_->add_bos_token = add;
  }
  double length = 0;  // old files have 1e30 for "no limit"
  RETURN_IF_ERROR(json_read(config, "model_max_length", length));
  // Read as a double, because 1e30 does not fit an integer; what is below is exact in 53 bits.
  constexpr double kNoLimit = 1e15;
  if (length > 0 && length < kNoLimit) impl_->model_max_length = static_cast<int64_t>(length);
  return ok_status();
}

// Last, when all tokens are known. The post-processor's ids reach encode()'s result unchecked, and the invariant there
// is id < vocab_size().
Status Loader::check_ids() const {
  for (const auto* ids : {&impl_->post_processor.prefix, &impl_->post_processor.suffix}) {
    for (const int32_t id : *ids) {
      if (!impl_->model.has(id) && !impl_->added.has(id)) {
        return invalid_argument("post_processor: the id {} is no token; wanted one of the vocabulary", id);
      }
    }
  }
  return ok_status();
}

Result<std::unique_ptr<Tokenizer::Impl>> Loader::run(std::string_view config_text) {
  Json config = Json::object();
  if (!config_text.empty()) {
    Result<Json> parsed = parse_json(config_text);
    if (!parsed.ok()) return parsed.status().with_prefix("tokenizer_config.json");
    config = std::move(parsed).value();
    if (!config.is_object())
      return invalid_argument("tokenizer_config.json is a {}; wanted an object", json_type_name(config));
  }
  // Once for the whole file: strings that are copied out of it as they stand are then valid.
  if (const size_t broken = utf8_find_invalid(file_); broken != std::string_view::npos) {
    return invalid_argument("byte {} is not UTF-8; wanted a JSON file", broken);
  }
  JsonCursor cursor(file_);
  ASSIGN_OR_RETURN(top_, read_members(cursor));
  RETURN_IF_ERROR(cursor.expect_end());
  if (top_.count("model") == 0) return invalid_argument("the member \"model\" is missing; wanted an object");
  JsonCursor model_cursor = cursor_at(top_.at("model"));
  Result<Members> members = read_members(model_cursor);
  if (!members.ok()) return members.status().with_prefix("model");
  model_ = std::move(members).value();
  ASSIGN_OR_RETURN(const Json type, parse(model_, "type"));
  // Old files of BPE models have no type.
  if (!type.is_null() && type != "BPE") {
    return error(StatusCode::kUnsupported, "model.type is {}; wanted \"BPE\"", type.dump());
  }
  for (const char* key : {"vocab", "merges"}) {
    if (model_.count(key) == 0) return invalid_argument("model.{} is missing", key);
  }
  // The sequence is one of needs: added tokens are compared with the vocabulary and normalized; the BPE model needs the
  // pre-tokenizer's kind and the added tokens' marks; named tokens are looked up in both.
  RETURN_IF_ERROR(load_vocab(model_.at("vocab")).with_prefix("model.vocab"));
  RETURN_IF_ERROR(load_component(top_, "normalizer", impl_->normalizer));
  RETURN_IF_ERROR(load_component(top_, "pre_tokenizer", impl_->pre_tokenizer));
  RETURN_IF_ERROR(load_component(top_, "post_processor", impl_->post_processor));
  RETURN_IF_ERROR(load_component(top_, "decoder", impl_->decoder));
  ASSIGN_OR_RETURN(const Json added, parse(top_, "added_tokens"));
  RETURN_IF_ERROR(load_added(added));
  RETURN_IF_ERROR(load_added_decoder(config).with_prefix("tokenizer_config.json"));
  RETURN_IF_ERROR(load_model());
  RETURN_IF_ERROR(check_ids());
  RETURN_IF_ERROR(load_config(config).with_prefix("tokenizer_config.json"));
  return std::move(impl_);
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json,
                                                              std::string_view config_json) {
  if (tokenizer_json.size() > kMaxTokenizerFileBytes || config_json.size() > kMaxTokenizerConfigBytes) {
    return error(StatusCode::kTooLarge, "the files have {} and {} bytes; wanted at most {} and {}",
                 tokenizer_json.size(), config_json.size(), kMaxTokenizerFileBytes, kMaxTokenizerConfigBytes);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl, Loader(tokenizer_json).run(config_json));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& dir) {
  const std::string path = dir + "/tokenizer.json";
  ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxTokenizerFileBytes));
  Result<std::string> config = read_file(dir + "/tokenizer_config.json", kMaxTokenizerConfigBytes);
  // A model without the second file is complete; one whose file cannot be read is not.
  if (!config.ok() && config.status().code() != StatusCode::kNotFound) return config.status();
  Result<std::shared_ptr<const Tokenizer>> tokenizer = from_json(text, config.ok() ? *config : std::string());
  if (!tokenizer.ok()) return tokenizer.status().with_prefix(path);
  return tokenizer;
}

}  // namespace millrace
