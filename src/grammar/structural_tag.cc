#include "grammar/structural_tag.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/ordered_json.h"
#include "grammar/free_text.h"
#include "grammar/json_schema.h"
#include "grammar/token_mark.h"

namespace millrace::grammar {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Tag {
  std::string begin, end;  // with marks
  int schema = 0;          // a rule
};

class TagReader {
 public:
  explicit TagReader(const std::vector<std::string>& markers) : markers_(markers) {}

  Result<Rules> read(const OrderedJson& source, TextStart start) {
    rules_.bodies.push_back(empty());
    rules_.names.emplace_back("root");
    ASSIGN_OR_RETURN(const OrderedJson* triggers, list(source, "triggers"));
    ASSIGN_OR_RETURN(const OrderedJson* structures, list(source, "structures"));
    for (std::size_t i = 0; i < triggers->size(); ++i) {
      const std::string where = fmt::format("triggers[{}]", i);
      ASSIGN_OR_RETURN(std::string trigger, text((*triggers)[i], where));
      if (trigger.empty()) return invalid_argument("{} is empty; wanted a text", where);
      triggers_.push_back(std::move(trigger));
    }
    for (std::size_t i = 0; i < structures->size(); ++i) {
      RETURN_IF_ERROR(read_tag((*structures)[i], fmt::format("structures[{}]", i)));
    }
    const auto document = source.find("document");
    if (document == source.end()) {
      rules_.bodies[0] = begin(start);
      return std::move(rules_);
    }
    if (!document->is_string()) return invalid_argument("document is no string; wanted the text of a JSON Schema");
    const Result<Rules> schema = parse_json_schema(document->get_ref<const std::string&>(), work_);
    if (!schema.ok()) return schema.status().with_prefix("document");
    const ExprPtr content = alt({rule(append_rules(rules_, *schema)), rule(add_tags_alone())});
    rules_.bodies[0] = behind_reasoning(rules_, content, markers_, start);
    return std::move(rules_);
  }

 private:
  static Result<const OrderedJson*> list(const OrderedJson& source, const char* key) {
    const auto found = source.find(key);
    if (found == source.end() || !found->is_array() || found->empty()) {
      return invalid_argument("{} is {}; wanted a list with at least one entry", key,
                              found == source.end() ? "missing"
                              : found->is_array()   ? "empty"
                                                    : "no list");
    }
    if (found->size() <= kMaxTags) return &*found;
    return invalid_argument("{} has {} entries; wanted at most {}", key, found->size(), kMaxTags);
  }

  Result<std::string> text(const OrderedJson& value, const std::string& where) const {
    if (!value.is_string()) return invalid_argument("{} is no string; wanted one", where);
    const auto& bytes = value.get_ref<const std::string&>();
    if (bytes.size() <= kMaxTagBytes) return with_marks(bytes, markers_);
    return invalid_argument("{} has {} bytes; wanted at most {}", where, bytes.size(), kMaxTagBytes);
  }

  Status read_tag(const OrderedJson& given, const std::string& where) {
    if (!given.is_object()) return invalid_argument("{} is no object; wanted one", where);
    for (const char* key : {"begin", "schema", "end"}) {
      if (!given.contains(key)) return invalid_argument("{}.{} is missing; wanted begin, schema and end", where, key);
    }
    Tag tag;
    ASSIGN_OR_RETURN(tag.begin, text(given["begin"], where + ".begin"));
    ASSIGN_OR_RETURN(tag.end, text(given["end"], where + ".end"));
    const bool triggered = std::any_of(triggers_.begin(), triggers_.end(),
                                       [&](const std::string& trigger) { return tag.begin.starts_with(trigger); });
    if (!triggered) return invalid_argument("{}.begin begins with none of the triggers; wanted one that does", where);
    const Result<Rules> schema = parse_json_schema(given["schema"].dump(), work_);
    if (!schema.ok()) return schema.status().with_prefix(where);
    tag.schema = append_rules(rules_, *schema);
    tags_.push_back(std::move(tag));
    return ok_status();
  }

  // Where the trigger has come: the rest of the tags that begin with it, and free text again.
  ExprPtr behind(const std::string& trigger, int start) const {
    std::vector<ExprPtr> ways;
    for (const Tag& tag : tags_) {
      if (!tag.begin.starts_with(trigger)) continue;
      ways.push_back(seq(
          {grammar::text(tag.begin.substr(trigger.size())), rule(tag.schema), grammar::text(tag.end), rule(start)}));
    }
    return alt(std::move(ways));
  }

  // One tag, or several; returns the rule.
  int add_tags_alone() {
    const int tags = static_cast<int>(rules_.bodies.size());
    std::vector<ExprPtr> ways;
    for (const Tag& tag : tags_) {
      ways.push_back(seq({grammar::text(tag.begin), rule(tag.schema), grammar::text(tag.end)}));
    }
    rules_.bodies.push_back(seq({alt(std::move(ways)), optional(seq({line_ends(), rule(tags)}))}));
    rules_.names.emplace_back("tags");
    return tags;
  }

  // A text that may reason is free text too, with the tag of reasoning in it. That way of reading it ends at the first
  // token of a tag that does not fit, and both go on as one behind the reasoning.
  ExprPtr begin(TextStart start) {
    const int content = add_free_text(
        rules_, triggers_, [&](std::size_t pattern, int first) { return behind(triggers_[pattern], first); });
    if (start == TextStart::kContent) return rule(content);
    const std::string close = with_marks(kCloseReasoning, markers_);
    const int reasoning = add_free_text(rules_, {close}, [&](std::size_t, int) { return rule(content); });
    if (start == TextStart::kReasons) return rule(reasoning);
    const ExprPtr space = repeat(chars(CharSet::of(" \n\r\t")), 0, kUnbounded);
    return alt({seq({space, grammar::text(with_marks(kOpenReasoning, markers_)), rule(reasoning)}), rule(content)});
  }

  const std::vector<std::string>& markers_;
  Rules rules_;
  std::vector<std::string> triggers_;  // with marks
  std::vector<Tag> tags_;
  SchemaWork work_;  // of all schemas
};

}  // namespace

Result<Rules> parse_structural_tag(std::string_view source, const std::vector<std::string>& markers, TextStart start) {
  if (source.size() > kMaxSourceBytes) {
    return error(StatusCode::kTooLarge, "the tags have {} bytes; wanted at most {}", source.size(), kMaxSourceBytes);
  }
  const Result<Json> checked = parse_json(source, kMaxSchemaNesting);
  if (!checked.ok()) return checked.status().with_prefix("the tags");
  if (!checked->is_object()) return invalid_argument("the tags are no object; wanted one");
  return TagReader(markers).read(parse_ordered_json(source), start);
}

}  // namespace millrace::grammar
