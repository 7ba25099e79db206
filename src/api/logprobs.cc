#include "api/logprobs.h"

#include <algorithm>
#include <limits>

#include "api/reply_format.h"
#include "base/json.h"
#include "base/utf8.h"

namespace millrace::api {
namespace {

// The wire holds numbers that were computed in f32: their shortest f32 spelling loses nothing.
void append_number(std::string& out, double logprob) {
  const double finite = logprob > kLeastLogprob ? std::min(logprob, 0.0) : kLeastLogprob;  // NaN too
  fmt::format_to(std::back_inserter(out), "{}", static_cast<float>(finite));
}

void append_optional(std::string& out, const std::optional<double>& logprob) {
  if (logprob) {
    append_number(out, *logprob);
  } else {
    out += "null";
  }
}

std::string name_of_id(int32_t id) { return fmt::format("token_id:{}", id); }

// "token":"...","logprob":-1.5,"bytes":[104,105]
void append_chat_token(std::string& out, const TokenNames& names, int32_t id, const std::optional<double>& logprob) {
  const std::string bytes = names.engine.token_bytes(id);
  out += "\"token\":";
  json_append_string(out, names.as_ids ? name_of_id(id) : bytes);
  out += ",\"logprob\":";
  append_optional(out, logprob);
  out += ",\"bytes\":[";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{}", i ? "," : "", static_cast<unsigned char>(bytes[i]));
  }
  out += ']';
}

std::string token_key(const TokenNames& names, int32_t id) {
  if (names.as_ids) return name_of_id(id);
  std::string bytes = names.engine.token_bytes(id);
  if (utf8_find_invalid(bytes) == std::string::npos) return bytes;
  std::string key = "bytes:";
  for (char byte : bytes) fmt::format_to(std::back_inserter(key), "\\x{:02x}", static_cast<unsigned char>(byte));
  return key;
}

// The likeliest tokens, and the drawn one where it is not among them; of two tokens with one text the likelier.
void append_text_top(std::string& out, const TokenNames& names, const wire::TokenLogprobs& position) {
  if (!position.logprob) {
    out += "null";
    return;
  }
  std::vector<std::string> keys;
  const auto append = [&](int32_t id, double logprob) {
    std::string key = token_key(names, id);
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) return;
    if (!keys.empty()) out += ',';
    json_append_string(out, key);
    out += ':';
    append_number(out, logprob);
    keys.push_back(std::move(key));
  };
  out += '{';
  for (std::size_t i = 0; i < std::min(position.top_ids.size(), names.top); ++i)
    append(position.top_ids[i], position.top[i]);
  append(position.token, *position.logprob);
  out += '}';
}

// What of a token's bytes stands in the text at the offset: all; all but its leading space, at the very beginning (the
// decoders of SentencePiece models drop it); U+FFFD for bytes that are no character; nothing.
std::string_view covered(const TextOffset& offset, const std::string& bytes) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  const std::string_view rest = std::string_view(offset.text).substr(std::min(offset.at, offset.text.size()));
  const auto fits = [rest](std::string_view part) {
    return rest.size() < part.size() ? part.starts_with(rest) : rest.starts_with(part);
  };
  const std::string_view all = bytes;
  if (fits(all)) return all;
  if (offset.at == 0 && all.starts_with(' ') && fits(all.substr(1))) return all.substr(1);
  if (rest.starts_with(kReplacement) && utf8_find_invalid(all) != std::string::npos) return kReplacement;
  return {};
}

// Where a token begins: the number of code points that began before it; inside one where it begins with its rest.
int64_t advance(TextOffset& offset, const std::string& bytes) {
  const std::string_view part = covered(offset, bytes);
  const bool inside = !part.empty() && utf8_is_continuation(part.front()) && offset.code_points > 0;
  const int64_t begin = offset.code_points - (inside ? 1 : 0);
  offset.at += part.size();
  offset.code_points += std::count_if(part.begin(), part.end(), [](char byte) { return !utf8_is_continuation(byte); });
  return begin;
}

// Appends a list with one entry for each position of both spans.
template <typename Entry>
void append_list(std::string& out, LogprobSpan first, LogprobSpan second, Entry entry) {
  out += '[';
  bool comma = false;
  for (LogprobSpan span : {first, second}) {
    for (const wire::TokenLogprobs& position : span) {
      if (comma) out += ',';
      comma = true;
      entry(position);
    }
  }
  out += ']';
}

void append_native_token(std::string& out, const Engine& engine, int32_t id, const std::optional<double>& logprob,
                         bool with_text) {
  out += '[';
  append_optional(out, logprob);
  fmt::format_to(std::back_inserter(out), ",{},", id);
  if (with_text) {
    json_append_string(out, engine.token_bytes(id));
  } else {
    out += "null";
  }
  out += ']';
}

void append_native_row(std::string& out, const Engine& engine, std::span<const int32_t> ids,
                       std::span<const double> values, bool with_text) {
  if (values.empty()) {
    out += "null";
    return;
  }
  out += '[';
  for (std::size_t i = 0; i < std::min(ids.size(), values.size()); ++i) {
    if (i) out += ',';
    append_native_token(out, engine, ids[i], values[i], with_text);
  }
  out += ']';
}

}  // namespace

void append_token_logprobs(std::string& out, const TokenNames& names, LogprobSpan tokens) {
  append_list(out, tokens, {}, [&](const wire::TokenLogprobs& position) {
    out += '{';
    append_chat_token(out, names, position.token, position.logprob);
    out += ",\"top_logprobs\":[";
    for (std::size_t i = 0; i < std::min(position.top_ids.size(), names.top); ++i) {
      out += i ? ",{" : "{";
      append_chat_token(out, names, position.top_ids[i], position.top[i]);
      out += '}';
    }
    out += "]}";
  });
}

void append_chat_logprobs(std::string& out, const TokenNames& names, LogprobSpan tokens) {
  out += "{\"content\":";
  append_token_logprobs(out, names, tokens);
  out += ",\"refusal\":null}";
}

void append_text_logprobs(std::string& out, const TokenNames& names, LogprobSpan prompt, LogprobSpan tokens,
                          TextOffset& offset) {
  out += "{\"tokens\":";
  append_list(out, prompt, tokens,
              [&](const auto& position) { json_append_string(out, token_key(names, position.token)); });
  out += ",\"token_logprobs\":";
  append_list(out, prompt, tokens, [&](const auto& position) { append_optional(out, position.logprob); });
  out += ",\"top_logprobs\":";
  append_list(out, prompt, tokens, [&](const auto& position) { append_text_top(out, names, position); });
  out += ",\"text_offset\":";
  append_list(out, prompt, tokens, [&](const auto& position) {
    fmt::format_to(std::back_inserter(out), "{}", advance(offset, names.engine.token_bytes(position.token)));
  });
  out += '}';
}

void append_prompt_logprobs(std::string& out, const Engine& engine, LogprobSpan prompt) {
  append_list(out, prompt, {}, [&](const wire::TokenLogprobs& position) {
    if (!position.logprob) return static_cast<void>(out += "null");
    bool comma = false;
    const auto append = [&](int32_t id, double logprob, int64_t rank) {
      fmt::format_to(std::back_inserter(out), "{}\"{}\":{{\"logprob\":", comma ? "," : "", id);
      append_number(out, logprob);
      out += ",\"rank\":";
      append_integer(out, rank);
      out += ",\"decoded_token\":";
      json_append_string(out, engine.token_bytes(id));
      out += '}';
      comma = true;
    };
    out += '{';
    const auto at = std::find(position.top_ids.begin(), position.top_ids.end(), position.token);
    if (at == position.top_ids.end()) append(position.token, *position.logprob, position.rank);
    for (std::size_t i = 0; i < position.top_ids.size(); ++i) {
      append(position.top_ids[i], position.top[i], static_cast<int64_t>(i) + 1);
    }
    out += '}';
  });
}

void append_native_logprobs(std::string& out, const Engine& engine, LogprobSpan tokens, bool with_text) {
  append_list(out, tokens, {}, [&](const auto& position) {
    append_native_token(out, engine, position.token, position.logprob, with_text);
  });
}

void append_native_top(std::string& out, const Engine& engine, LogprobSpan tokens, bool with_text) {
  append_list(out, tokens, {},
              [&](const auto& position) { append_native_row(out, engine, position.top_ids, position.top, with_text); });
}

void append_native_of_ids(std::string& out, const Engine& engine, LogprobSpan tokens, std::span<const int32_t> ids,
                          bool with_text) {
  append_list(out, tokens, {},
              [&](const auto& position) { append_native_row(out, engine, ids, position.of_ids, with_text); });
}

double mean_logprob(LogprobSpan tokens) {
  double sum = 0;
  for (const wire::TokenLogprobs& position : tokens) sum += std::max(position.logprob.value_or(0), kLeastLogprob);
  return tokens.empty() ? -std::numeric_limits<double>::infinity() : sum / static_cast<double>(tokens.size());
}

}  // namespace millrace::api
