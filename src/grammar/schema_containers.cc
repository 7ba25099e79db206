#include <algorithm>
#include <set>

#include "grammar/schema_compiler.h"

namespace millrace::grammar {
namespace {

constexpr std::size_t kMaxNameBytes = 512;  // of a property, where others may stand beside it
constexpr std::size_t kMaxKeyPatterns = 4;  // of patternProperties: 16 classes of keys

ExprPtr comma(JsonText& json) { return seq({text(","), json.space()}); }

// A name as it stands between quotation marks.
std::string written_name(const std::string& name) {
  const std::string quoted = Schema(name).dump();
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

// ---- arrays --------------------------------------------------------------------------------------------------------

Result<ExprPtr> SchemaCompiler::array(const Schema& schema, const SchemaPath& path, int depth) {
  ASSIGN_OR_RETURN(const std::optional<int> min_items, count_member(schema, "minItems", path));
  ASSIGN_OR_RETURN(const std::optional<int> max_items, count_member(schema, "maxItems", path));
  const int least = min_items.value_or(0), most = max_items.value_or(kUnbounded);
  const auto unique = schema.find("uniqueItems");
  if (unique != schema.end() && *unique != Schema(false) && !(most == 0 || most == 1)) {
    return not_served(path, "uniqueItems", "false");
  }
  // prefixItems and items; in draft 7, an array of items and additionalItems.
  const bool old = schema.contains("items") && schema.at("items").is_array();
  ASSIGN_OR_RETURN(const Schema* prefix, array_member(schema, old ? "items" : "prefixItems", path));
  const char* item_key = old ? "additionalItems" : "items";
  const Schema rest = schema.contains(item_key) ? schema.at(item_key) : Schema(true);
  ASSIGN_OR_RETURN(const ExprPtr item_value, shared(rest, path + "." + item_key, depth + 1));
  std::vector<ExprPtr> items;
  for (std::size_t i = 0; prefix && i < prefix->size(); ++i) {
    ASSIGN_OR_RETURN(ExprPtr one, shared(prefix->at(i), fmt::format("{}.prefixItems[{}]", path, i), depth + 1));
    items.push_back(seq({std::move(one), json_.space()}));
  }
  if (most != kUnbounded && least > most) return never();
  const int named = static_cast<int>(items.size());
  const ExprPtr item = seq({item_value, json_.space()});
  // From the end: what may follow when i items stand there.
  const auto more = [&](int from) {
    if (most != kUnbounded && from >= most) return empty();
    return repeat(seq({comma(json_), item}), std::max(0, least - from), most == kUnbounded ? kUnbounded : most - from);
  };
  if (named == 0) {
    const ExprPtr some = most == 0 ? never() : seq({item, more(1)});
    return seq({text("["), json_.space(), least == 0 ? alt({empty(), some}) : some, text("]")});
  }
  ExprPtr tail = more(named);
  for (int i = named - 1; i >= 0; --i) {
    const ExprPtr here = most != kUnbounded && i >= most
                             ? never()
                             : seq({i > 0 ? comma(json_) : empty(), items[static_cast<std::size_t>(i)], tail});
    tail = i >= least ? alt({empty(), here}) : here;
  }
  return seq({text("["), json_.space(), tail, text("]")});
}

// ---- objects -------------------------------------------------------------------------------------------------------

ExprPtr SchemaCompiler::member(ExprPtr key, ExprPtr value) {
  return seq({std::move(key), json_.space(), text(":"), json_.space(), std::move(value), json_.space()});
}

Result<ExprPtr> SchemaCompiler::object(const Schema& schema, const SchemaPath& path, int depth) {
  ASSIGN_OR_RETURN(const Schema* properties, object_member(schema, "properties", path));
  ASSIGN_OR_RETURN(const Schema* required_list, array_member(schema, "required", path));
  ASSIGN_OR_RETURN(const std::optional<int> least, count_member(schema, "minProperties", path));
  ASSIGN_OR_RETURN(const std::optional<int> most, count_member(schema, "maxProperties", path));
  std::set<std::string> required;
  for (std::size_t i = 0; required_list && i < required_list->size(); ++i) {
    const Schema& name = required_list->at(i);
    if (!name.is_string()) return invalid_argument("{}.required has an entry that is no string", path);
    required.insert(name.get<std::string>());
  }
  ASSIGN_OR_RETURN(const std::vector<KeyPattern> patterns, key_patterns(schema, path));
  ASSIGN_OR_RETURN(const ExprPtr more, more_members(schema, patterns, path, depth));  // never: no others
  struct Named {
    ExprPtr member;
    bool required = false;
  };
  std::vector<Named> named;
  const auto add = [&](const std::string& name, const Schema& named_value) -> Status {
    std::vector<bool> matches;
    for (const KeyPattern& pattern : patterns) matches.push_back(pattern.keys.accepts(written_name(name)));
    ASSIGN_OR_RETURN(const Schema value, joined(named_value, patterns, matches, path));
    ASSIGN_OR_RETURN(ExprPtr body, shared(value, fmt::format("{}.properties.{}", path, name), depth + 1));
    const bool must = required.erase(name) > 0;
    const ExprPtr entry = member(JsonText::quoted(name), std::move(body));
    if (entry->kind == Expr::Kind::kNever && !must) return ok_status();
    const int number = json_.add_rule(fmt::format("{}.{}", path, name));
    json_.set_rule(number, entry);
    named.push_back({entry->kind == Expr::Kind::kNever ? never() : rule(number), must});
    return ok_status();
  };
  if (properties) {
    for (const auto& [name, value] : properties->items()) RETURN_IF_ERROR(add(name, value));
  }
  // Required, but without a schema of their own: that of the patterns, or of the additional ones.
  const Schema others = schema.contains("additionalProperties") ? schema.at("additionalProperties") : Schema(true);
  for (const std::string& name : std::set<std::string>(required)) {
    const bool matched = std::any_of(patterns.begin(), patterns.end(), [&](const KeyPattern& pattern) {
      return pattern.keys.accepts(written_name(name));
    });
    RETURN_IF_ERROR(add(name, matched ? Schema(true) : others));
  }

  const auto musts =
      static_cast<int>(std::count_if(named.begin(), named.end(), [](const Named& n) { return n.required; }));
  const bool only_more = named.empty();
  const bool fits = least.value_or(0) <= musts &&
                    (!most || (more->kind == Expr::Kind::kNever && *most >= static_cast<int>(named.size())));
  if (!only_more && !fits) {
    return not_served(path, "minProperties or maxProperties beside properties", "neither");
  }
  const ExprPtr behind = seq({comma(json_), more});
  const int first_more = only_more ? least.value_or(0) : 0,
            last_more = only_more ? most.value_or(kUnbounded) : kUnbounded;
  if (last_more != kUnbounded && last_more < first_more) return never();
  // From the end: `after` follows a member, `first` the opening brace.
  ExprPtr after =
      repeat(behind, std::max(0, first_more - 1), last_more == kUnbounded ? kUnbounded : std::max(0, last_more - 1));
  ExprPtr first = last_more == 0 ? empty() : seq({more, after});
  if (first_more == 0) first = alt({empty(), first});
  for (std::size_t i = named.size(); i-- > 0;) {
    const ExprPtr here = seq({named[i].member, after});
    const int number = json_.add_rule(path);
    const ExprPtr next = seq({comma(json_), named[i].member, after});
    json_.set_rule(number, named[i].required ? next : alt({next, after}));
    first = named[i].required ? here : alt({here, first});
    after = next->kind == Expr::Kind::kNever && named[i].required ? never() : rule(number);
  }
  return seq({text("{"), json_.space(), first, text("}")});
}

Result<std::vector<SchemaCompiler::KeyPattern>> SchemaCompiler::key_patterns(const Schema& schema,
                                                                             const SchemaPath& path) {
  std::vector<KeyPattern> out;
  ASSIGN_OR_RETURN(const Schema* patterns, object_member(schema, "patternProperties", path));
  if (!patterns) return out;
  if (patterns->size() > kMaxKeyPatterns) {
    return not_served(path, fmt::format("patternProperties with {} patterns", patterns->size()),
                      fmt::format("at most {}", kMaxKeyPatterns));
  }
  for (const auto& [pattern, value] : patterns->items()) {
    ASSIGN_OR_RETURN(const ExprPtr content, content_of(pattern, path + ".patternProperties"));
    Result<Language> keys = Language::of(content);
    if (!keys.ok()) return keys.status().with_prefix(path + ".patternProperties");
    out.push_back({std::move(*keys), value});
  }
  return out;
}

// What a key's value has to be: the schema of `properties`, or of the additional ones, and of each pattern it matches.
Result<Schema> SchemaCompiler::joined(Schema value, const std::vector<KeyPattern>& patterns,
                                      const std::vector<bool>& matches, const SchemaPath& path) {
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (!matches[i]) continue;
    // Alone as it is: a reference to a schema that contains this one must not be followed here.
    Result<Schema> next =
        value == Schema(true) ? Result<Schema>(patterns[i].value) : merger_.merge(value, patterns[i].value);
    if (!next.ok()) return next.status().with_prefix(path + ".patternProperties");
    value = std::move(*next);
  }
  return value;
}

// One member that `properties` does not name; never(): none may stand.
Result<ExprPtr> SchemaCompiler::more_members(const Schema& schema, const std::vector<KeyPattern>& patterns,
                                             const SchemaPath& path, int depth) {
  const Schema more = schema.contains("additionalProperties") ? schema.at("additionalProperties") : Schema(true);
  std::vector<std::string> names;
  if (const auto found = schema.find("properties"); found != schema.end()) {
    for (const auto& [name, value] : found->items()) names.push_back(name);
  }
  if (const auto found = schema.find("required"); found != schema.end()) {
    for (const Schema& name : *found) {
      if (name.is_string()) names.push_back(name.get<std::string>());
    }
  }
  ExprPtr out = never();
  if (!patterns.empty()) {
    ASSIGN_OR_RETURN(out, members_by_pattern(more, patterns, names, path, depth));
  } else {
    ASSIGN_OR_RETURN(const ExprPtr value, shared(more, path + ".additionalProperties", depth + 1));
    if (value->kind == Expr::Kind::kNever) return never();
    ASSIGN_OR_RETURN(const ExprPtr key, other_key(names, path));
    out = member(key, value);
  }
  if (out->kind == Expr::Kind::kNever) return out;
  const int number = json_.add_rule(path + ".additionalProperties");
  json_.set_rule(number, out);
  return rule(number);
}

// The keys without a name of their own fall into classes by the patterns that they match; each has its schema.
Result<ExprPtr> SchemaCompiler::members_by_pattern(const Schema& more, const std::vector<KeyPattern>& patterns,
                                                   const std::vector<std::string>& names, const SchemaPath& path,
                                                   int depth) {
  std::vector<ExprPtr> spelled;
  for (const std::string& name : names) spelled.push_back(text(written_name(name)));
  ASSIGN_OR_RETURN(const Language any_key, Language::of(repeat(JsonText::written(CharSet::any()), 0, kUnbounded)));
  ASSIGN_OR_RETURN(const Language named, Language::of(alt(std::move(spelled))));
  ASSIGN_OR_RETURN(const Language others, Language::minus(any_key, named));
  std::vector<ExprPtr> members;
  for (std::size_t chosen = 0; chosen < std::size_t{1} << patterns.size(); ++chosen) {
    Language keys = others;
    std::vector<bool> matches(patterns.size());
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      matches[i] = (chosen >> i & 1) != 0;
      ASSIGN_OR_RETURN(keys,
                       matches[i] ? Language::both(keys, patterns[i].keys) : Language::minus(keys, patterns[i].keys));
    }
    if (keys.empty()) continue;
    // A key that a pattern matches is no additional one.
    ASSIGN_OR_RETURN(const Schema value, joined(chosen == 0 ? more : Schema(true), patterns, matches, path));
    ASSIGN_OR_RETURN(const ExprPtr body, shared(value, path + ".patternProperties", depth + 1));
    if (body->kind == Expr::Kind::kNever) continue;
    const SchemaPath key_path = path + ".patternProperties";
    members.push_back(member(seq({text("\""), keys.to_expr(rules_, key_path), text("\"")}), body));
  }
  return alt(std::move(members));
}

Result<ExprPtr> SchemaCompiler::other_key(const std::vector<std::string>& names, const SchemaPath& path) {
  if (names.empty()) return json_.string();
  std::vector<std::u32string> wide;
  for (const std::string& name : names) {
    if (name.size() > kMaxNameBytes) {
      return not_served(path, fmt::format("a property's name of more than {} bytes", kMaxNameBytes),
                        "additionalProperties false beside it");
    }
    std::u32string& out = wide.emplace_back();
    for (std::size_t at = 0; at < name.size();) out.push_back(static_cast<char32_t>(next_char(name, at)));
  }
  return seq({text("\""), other_key_from(wide, 0)});
}

// The rest of a key, with its quotation mark, that has been like each of `names` for `at` characters. An escape that
// could spell a character of a name is left out until the key differs from all of them.
ExprPtr SchemaCompiler::other_key_from(const std::vector<std::u32string>& names, std::size_t at) {
  bool is_name = false;
  CharSet next;
  for (const std::u32string& name : names) {
    if (name.size() == at) is_name = true;
    if (name.size() > at) next.add(name[at], name[at]);
  }
  const ExprPtr rest = seq({repeat(json_.character(), 0, kUnbounded), text("\"")});
  std::vector<ExprPtr> parts{seq({JsonText::written(next.complement()), rest})};
  if (!is_name) parts.push_back(text("\""));
  for (const CharSet::Range& range : next.ranges()) {
    for (uint32_t c = range.low; c <= range.high; ++c) {
      std::vector<std::u32string> same;
      std::copy_if(names.begin(), names.end(), std::back_inserter(same),
                   [&](const std::u32string& name) { return name.size() > at && name[at] == c; });
      parts.push_back(seq({JsonText::written({c, c}), other_key_from(same, at + 1)}));
    }
  }
  return alt(std::move(parts));
}

}  // namespace millrace::grammar
