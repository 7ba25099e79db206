#include <algorithm>
#include <set>

#include "base/utf8.h"

#include "grammar/schema_compiler.h"

namespace millrace::grammar {
namespace {

constexpr std::size_t kMaxNameBytes = 512;    // of a property, where others may stand beside it
constexpr std::size_t kMaxKeyPatterns = 64;   // of patternProperties and other conditions on keys
constexpr std::size_t kMaxKeyClasses = 128;   // of keys that match the same of them
constexpr std::size_t kCharacterSteps = 200;  // of a SchemaWork: of a name that other keys must not spell

ExprPtr comma(JsonText& json) { return seq({text(","), json.space()}); }

// Those of properties and required.
std::vector<std::string> names_of(const Schema& schema) {
  std::vector<std::string> names;
  if (const auto found = schema.find("properties"); found != schema.end() && found->is_object()) {
    for (const auto& [name, value] : found->items()) names.push_back(name);
  }
  if (const auto found = schema.find("required"); found != schema.end() && found->is_array()) {
    for (const Schema& name : *found) {
      if (name.is_string()) names.push_back(name.get<std::string>());
    }
  }
  return names;
}

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
  if (most != kUnbounded && least > most) return never();
  // prefixItems and items; in draft 7, an array of items and additionalItems.
  const bool old = schema.contains("items") && schema.at("items").is_array();
  ASSIGN_OR_RETURN(const Schema* prefix, array_member(schema, old ? "items" : "prefixItems", path));
  const char* item_key = old ? "additionalItems" : "items";
  const Schema rest = schema.contains(item_key) ? schema.at(item_key) : Schema(true);
  const bool counted = least > 0 || most != kUnbounded;
  const auto item_of = [&](const Schema& one, const std::string& where) -> Result<ExprPtr> {
    ASSIGN_OR_RETURN(ExprPtr value, shared(one, where, depth + 1));
    return seq({counted ? tick() : empty(), std::move(value), json_.space()});
  };
  ASSIGN_OR_RETURN(const ExprPtr item, item_of(rest, path + "." + item_key));
  ExprPtr all;
  if (const auto wanted = schema.find("contains"); wanted != schema.end()) {
    if (prefix) return not_served(path, "contains beside prefixItems", "items");
    ASSIGN_OR_RETURN(const Schema both, merger_.merge_lazily(rest, *wanted, 0));
    ASSIGN_OR_RETURN(const ExprPtr one, item_of(both, path + ".contains"));
    // The first of them is at the beginning, or not.
    const ExprPtr more = repeat(seq({comma(json_), item}), 0, kUnbounded);
    all = alt({seq({one, more}), seq({item, more, comma(json_), one, more})});
  } else {
    // From the end: what may follow when i items stand there.
    all = repeat(seq({comma(json_), item}), 0, kUnbounded);
    if (!prefix || prefix->empty()) all = alt({empty(), seq({item, all})});
    for (std::size_t i = prefix ? prefix->size() : 0; i-- > 0;) {
      ASSIGN_OR_RETURN(const ExprPtr one, item_of(prefix->at(i), fmt::format("{}.prefixItems[{}]", path, i)));
      all = alt({empty(), seq({i > 0 ? comma(json_) : empty(), one, all})});
    }
  }
  ExprPtr body = seq({text("["), json_.space(), std::move(all), text("]")});
  if (!counted || body->kind == Expr::Kind::kNever) return body;
  const int number = json_.add_rule(path);
  json_.set_rule(number, std::move(body));
  rules_.counts[number] = {least, most};
  return rule(number);
}

// ---- objects -------------------------------------------------------------------------------------------------------

ExprPtr SchemaCompiler::member(ExprPtr key, ExprPtr value) {
  return seq({std::move(key), json_.space(), text(":"), json_.space(), std::move(value), json_.space()});
}

// One of the named properties is it, or an additional one.
Result<ExprPtr> SchemaCompiler::object_with_some(const Schema& schema, const SchemaPath& path, int depth) {
  Schema rest = schema;
  const Schema condition = rest[joined::kSome].back();
  rest.erase(joined::kSome);
  const Schema& all = schema.at(joined::kSome);
  if (all.size() > 1) rest[joined::kSome] = Schema(all.begin(), all.end() - 1);
  ASSIGN_OR_RETURN(const Language keys, keys_of(condition, path));
  const Schema other = condition.at("value").is_boolean() ? Schema(!condition.at("value").get<bool>())
                                                          : Schema{{"not", condition.at("value")}};
  const std::vector<std::string> listed = names_of(schema);
  const std::set<std::string> names(listed.begin(), listed.end());
  std::vector<ExprPtr> parts;
  const auto add = [&](const Schema& one) -> Status {
    if (one == Schema(false)) return ok_status();
    ASSIGN_OR_RETURN(ExprPtr part, shared(one, path, depth + 1));
    parts.push_back(std::move(part));
    return ok_status();
  };
  for (const std::string& name : names) {
    if (!keys.accepts(written_name(name))) continue;
    ASSIGN_OR_RETURN(const Schema one, merger_.merge(rest, {{"type", "object"},
                                                            {"required", Schema::array({name})},
                                                            {"properties", {{name, other}}}}));
    RETURN_IF_ERROR(add(one));
  }
  const auto more = schema.find("additionalProperties");
  if (!schema.contains(joined::kExtra) && (more == schema.end() || *more != Schema(false))) {
    rest["type"] = "object";
    rest[joined::kExtra] = condition;
    RETURN_IF_ERROR(add(rest));
  }
  return alt(std::move(parts));
}

Result<ExprPtr> SchemaCompiler::object(const Schema& schema, const SchemaPath& path, int depth) {
  if (schema.contains(joined::kSome)) return object_with_some(schema, path, depth);
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
  ExprPtr extra;  // one of them has to be one of these
  if (const auto condition = schema.find(joined::kExtra); condition != schema.end()) {
    ASSIGN_OR_RETURN(extra, extra_member(schema, *condition, patterns, path, depth));
  }
  std::vector<Named> named;
  const auto add = [&](const std::string& name, const Schema& named_value) -> Status {
    std::vector<bool> matches;
    matches.reserve(patterns.size());
    for (const KeyPattern& pattern : patterns) matches.push_back(pattern.keys.accepts(written_name(name)));
    ASSIGN_OR_RETURN(const Schema value, joined_value(named_value, patterns, matches, path));
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

  const Count count{least.value_or(0), most.value_or(kUnbounded)};
  if (most && count.most < count.least) return never();
  return members(named, more, extra, count, path);
}

// What follows the named members: `first` where none of them stands, `after` behind one. Each ends the object, so that
// the rules of the chain are called last, and their ticks count for the object (Count).
//
// Others may repeat a key, of which the last counts: all of them are one member for certain. Where `least` needs more
// members than the named ones that have to stand and this one, only the first of them ticks, and no other may follow
// where they would have to tick for `most`. `extra` is the last, so that no other takes its key.
SchemaCompiler::Behind SchemaCompiler::members_behind(const ExprPtr& more, const ExprPtr& extra, bool only_first,
                                                      bool bounded, const ExprPtr& one_more) {
  const ExprPtr another = seq({only_first ? empty() : one_more, comma(json_), more});
  const ExprPtr others = only_first && bounded ? empty() : repeat(another, 0, kUnbounded);
  if (extra) {
    const ExprPtr last = seq({one_more, extra, text("}")});
    const ExprPtr then = seq({others, comma(json_), last});
    if (only_first && bounded) return {last, then};
    return {alt({last, seq({only_first ? empty() : one_more, more, then})}), then};
  }
  const ExprPtr some = seq({one_more, more, others});
  return {seq({optional(some), text("}")}), seq({optional(seq({comma(json_), some})), text("}")})};
}

// The named members in their sequence, then the others.
Result<ExprPtr> SchemaCompiler::members(const std::vector<Named>& named, const ExprPtr& more, const ExprPtr& extra,
                                        Count count, const SchemaPath& path) {
  const auto musts =
      static_cast<int>(std::count_if(named.begin(), named.end(), [](const Named& n) { return n.required; }));
  const bool no_others = more->kind == Expr::Kind::kNever && !extra;
  const bool only_first = !no_others && count.least > musts + 1;
  if (const auto most = static_cast<int>(named.size()) + 1; only_first && count.least > most) {
    return not_served(path, fmt::format("minProperties {}", count.least),
                      fmt::format("at most {}, the named properties and one more: others may repeat a key", most));
  }
  const bool bounded = count.most != kUnbounded;
  const bool fits = count.least <= musts + (extra ? 1 : 0) &&
                    (!bounded || (no_others && count.most >= static_cast<int>(named.size())));
  const ExprPtr one_more = fits ? empty() : tick();
  auto [first, after] = members_behind(more, extra, only_first, bounded, one_more);
  for (std::size_t i = named.size(); i-- > 0;) {
    const ExprPtr here = seq({one_more, named[i].member, after});
    const int number = json_.add_rule(path);
    const ExprPtr next = seq({one_more, comma(json_), named[i].member, after});
    json_.set_rule(number, named[i].required ? next : alt({next, after}));
    first = named[i].required ? here : alt({here, first});
    after = next->kind == Expr::Kind::kNever && named[i].required ? never() : rule(number);
  }
  ExprPtr body = seq({text("{"), json_.space(), first});
  if (fits || body->kind == Expr::Kind::kNever) return body;
  const int number = json_.add_rule(path);
  json_.set_rule(number, std::move(body));
  rules_.counts[number] = count;
  return rule(number);
}

Result<std::vector<SchemaCompiler::KeyPattern>> SchemaCompiler::key_patterns(const Schema& schema,
                                                                             const SchemaPath& path) {
  std::vector<KeyPattern> out;
  ASSIGN_OR_RETURN(const Schema* patterns, object_member(schema, "patternProperties", path));
  ASSIGN_OR_RETURN(const Schema* conditions, array_member(schema, joined::kKeys, path));
  const std::size_t count = (patterns ? patterns->size() : 0) + (conditions ? conditions->size() : 0);
  if (count > kMaxKeyPatterns) {
    return not_served(path, fmt::format("patternProperties with {} patterns", count),
                      fmt::format("at most {}", kMaxKeyPatterns));
  }
  for (std::size_t i = 0; conditions && i < conditions->size(); ++i) {
    Result<Language> keys = keys_of(conditions->at(i), path);
    if (!keys.ok()) return keys.status().with_prefix(path);
    out.push_back({std::move(*keys), conditions->at(i).at("value")});
  }
  if (!patterns) return out;
  for (const auto& [pattern, value] : patterns->items()) {
    ASSIGN_OR_RETURN(const ExprPtr content, content_of(pattern, path + ".patternProperties", false));
    Result<Language> keys = Language::of(content, work_);
    if (!keys.ok()) return keys.status().with_prefix(path + ".patternProperties");
    out.push_back({std::move(*keys), value});
  }
  return out;
}

// The keys that a condition of joined::kKeys speaks of.
Result<Language> SchemaCompiler::keys_of(const Schema& condition, const SchemaPath& path) {
  if (const auto pattern = condition.find("pattern"); pattern != condition.end()) {
    ASSIGN_OR_RETURN(const ExprPtr content, content_of(pattern->get_ref<const std::string&>(), path, false));
    return Language::of(content, work_);
  }
  ASSIGN_OR_RETURN(Language keys, Language::of(any_content(), work_));
  if (const auto unless = condition.find("unless"); unless != condition.end()) {
    ASSIGN_OR_RETURN(const Schema texts, merger_.merge({{"type", "string"}}, *unless));
    if (texts == Schema(false)) return keys;
    ASSIGN_OR_RETURN(const Rules rules, SchemaCompiler(root_, work_).compile(texts));
    const Result<std::shared_ptr<const Grammar>> grammar = Grammar::compile(rules);
    if (!grammar.ok() && grammar.status().code() == StatusCode::kInvalidArgument) return keys;  // none is allowed
    RETURN_IF_ERROR(grammar.status());
    ASSIGN_OR_RETURN(const Language allowed, Language::between(*grammar, "\"", '"', work_));
    return Language::minus(keys, allowed, work_);
  }
  for (const Schema& pattern : condition.at("patterns")) {
    ASSIGN_OR_RETURN(const ExprPtr content,
                     content_of(pattern.get_ref<const std::string&>(), path + ".patternProperties", false));
    ASSIGN_OR_RETURN(const Language matched, Language::of(content, work_));
    ASSIGN_OR_RETURN(keys, Language::minus(keys, matched, work_));
  }
  std::vector<ExprPtr> spelled;
  for (const Schema& name : condition.at("names")) spelled.push_back(text(written_name(name.get<std::string>())));
  ASSIGN_OR_RETURN(const Language named, Language::of(alt(std::move(spelled)), work_));
  return Language::minus(keys, named, work_);
}

// What a key's value has to be: the schema of `properties`, or of the additional ones, and of each pattern it matches.
Result<Schema> SchemaCompiler::joined_value(Schema value, const std::vector<KeyPattern>& patterns,
                                            const std::vector<bool>& matches, const SchemaPath& path) {
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (!matches[i]) continue;
    // A reference to a schema that contains this one must not be followed here.
    Result<Schema> next = merger_.merge_lazily(value, patterns[i].value, 0);
    if (!next.ok()) return next.status().with_prefix(path + ".patternProperties");
    value = std::move(*next);
  }
  return value;
}

// An additional member whose value the condition refuses.
Result<ExprPtr> SchemaCompiler::extra_member(const Schema& schema, const Schema& condition,
                                             std::vector<KeyPattern> patterns, const SchemaPath& path, int depth) {
  const Schema more = schema.contains("additionalProperties") ? schema.at("additionalProperties") : Schema(true);
  const Schema& refused = condition.at("value");
  ASSIGN_OR_RETURN(Language keys, keys_of(condition, path));
  patterns.push_back({std::move(keys), refused.is_boolean() ? Schema(!refused.get<bool>()) : Schema{{"not", refused}}});
  ASSIGN_OR_RETURN(const std::vector<KeyClass> classes, key_classes(patterns, names_of(schema), path));
  std::vector<ExprPtr> members;
  for (const KeyClass& one : classes) {
    if (!one.matches.back()) continue;
    const bool matched = std::find(one.matches.begin(), one.matches.end() - 1, true) != one.matches.end() - 1;
    ASSIGN_OR_RETURN(const Schema value, joined_value(matched ? Schema(true) : more, patterns, one.matches, path));
    ASSIGN_OR_RETURN(const ExprPtr body, shared(value, path + ".additionalProperties", depth + 1));
    if (body->kind == Expr::Kind::kNever) continue;
    members.push_back(member(seq({text("\""), one.keys.to_expr(rules_, path), text("\"")}), body));
  }
  return alt(std::move(members));
}

// One member that `properties` does not name; never(): none may stand.
Result<ExprPtr> SchemaCompiler::more_members(const Schema& schema, const std::vector<KeyPattern>& patterns,
                                             const SchemaPath& path, int depth) {
  const Schema more = schema.contains("additionalProperties") ? schema.at("additionalProperties") : Schema(true);
  const std::vector<std::string> names = names_of(schema);
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

// The keys without a name of their own fall into classes by the patterns that they match.
Result<std::vector<SchemaCompiler::KeyClass>> SchemaCompiler::key_classes(const std::vector<KeyPattern>& patterns,
                                                                          const std::vector<std::string>& names,
                                                                          const SchemaPath& path) {
  std::vector<ExprPtr> spelled;
  spelled.reserve(names.size());
  for (const std::string& name : names) spelled.push_back(text(written_name(name)));
  ASSIGN_OR_RETURN(const Language any_key, Language::of(any_content(), work_));
  ASSIGN_OR_RETURN(const Language named, Language::of(alt(std::move(spelled)), work_));
  ASSIGN_OR_RETURN(Language others, Language::minus(any_key, named, work_));
  std::vector<KeyClass> out;
  out.push_back({std::move(others), {}});
  for (const KeyPattern& pattern : patterns) {
    std::vector<KeyClass> next;
    for (const KeyClass& one : out) {
      for (const bool matches : {false, true}) {
        ASSIGN_OR_RETURN(Language keys, matches ? Language::both(one.keys, pattern.keys, work_)
                                                : Language::minus(one.keys, pattern.keys, work_));
        if (keys.empty()) continue;
        next.push_back({std::move(keys), one.matches});
        next.back().matches.push_back(matches);
      }
    }
    out = std::move(next);
    if (out.size() > kMaxKeyClasses) {
      return not_served(path, fmt::format("patternProperties with more than {} overlaps", kMaxKeyClasses),
                        "fewer patterns");
    }
  }
  return out;
}

// Each class of keys has its schema.
Result<ExprPtr> SchemaCompiler::members_by_pattern(const Schema& more, const std::vector<KeyPattern>& patterns,
                                                   const std::vector<std::string>& names, const SchemaPath& path,
                                                   int depth) {
  ASSIGN_OR_RETURN(const std::vector<KeyClass> classes, key_classes(patterns, names, path));
  std::vector<ExprPtr> members;
  for (const KeyClass& one : classes) {
    // A key that a pattern matches is no additional one.
    const bool matched = std::find(one.matches.begin(), one.matches.end(), true) != one.matches.end();
    ASSIGN_OR_RETURN(const Schema value, joined_value(matched ? Schema(true) : more, patterns, one.matches, path));
    ASSIGN_OR_RETURN(const ExprPtr body, shared(value, path + ".patternProperties", depth + 1));
    if (body->kind == Expr::Kind::kNever) continue;
    const SchemaPath key_path = path + ".patternProperties";
    members.push_back(member(seq({text("\""), one.keys.to_expr(rules_, key_path), text("\"")}), body));
  }
  return alt(std::move(members));
}

Result<ExprPtr> SchemaCompiler::other_key(const std::vector<std::string>& names, const SchemaPath& path) {
  if (names.empty()) return json_.string();
  std::vector<std::u32string> wide;
  std::size_t characters = 0;
  for (const std::string& name : names) {
    if (name.size() > kMaxNameBytes) {
      return not_served(path, fmt::format("a property's name of more than {} bytes", kMaxNameBytes),
                        "additionalProperties false beside it");
    }
    std::u32string& out = wide.emplace_back();
    for (std::size_t at = 0; at < name.size();) out.push_back(static_cast<char32_t>(utf8_next(name, at)));
    characters += out.size();
  }
  RETURN_IF_ERROR(work_.spend(characters * kCharacterSteps));
  return seq({text("\""), other_key_from({wide.begin(), wide.end()}, 0)});
}

// The rest of a key, with its quotation mark, that has been like each of `names` for `at` characters. An escape that
// could spell a character of a name is left out until the key differs from all of them.
ExprPtr SchemaCompiler::other_key_from(const std::vector<std::u32string_view>& names, std::size_t at) {
  bool is_name = false;
  CharSet next;
  for (const std::u32string_view name : names) {
    if (name.size() == at) is_name = true;
    if (name.size() > at) next.add(name[at], name[at]);
  }
  const ExprPtr rest = seq({repeat(json_.character(), 0, kUnbounded), text("\"")});
  std::vector<ExprPtr> parts{seq({JsonText::written(next.complement()), rest})};
  if (!is_name) parts.push_back(text("\""));
  for (const CharSet::Range& range : next.ranges()) {
    for (uint32_t c = range.low; c <= range.high; ++c) {
      std::vector<std::u32string_view> same;
      std::copy_if(names.begin(), names.end(), std::back_inserter(same),
                   [&](std::u32string_view name) { return name.size() > at && name[at] == c; });
      parts.push_back(seq({JsonText::written({c, c}), other_key_from(same, at + 1)}));
    }
  }
  return alt(std::move(parts));
}

}  // namespace millrace::grammar
