#include "text/pre_tokenizer.h"

#include "base/utf8.h"
#include "text/unicode.h"

namespace millrace {

// One pass of one text through the steps: each step cuts its word and hands the parts to the next step at once.
class PreTokenizerChain::Run {
 public:
  Run(const PreTokenizerChain& chain, PreTokenizerScratch& scratch, const Sink& sink)
      : chain_(chain), scratch_(scratch), sink_(sink) {
    scratch_.rewritten.resize(chain.steps_.size());
  }

  // Recursion is as deep as there are steps (kMaxComponents).
  Status apply(size_t step, std::string_view word, bool at_start) {
    if (word.empty()) return ok_status();
    if (step == chain_.steps_.size()) {
      sink_(word);
      return ok_status();
    }
    return std::visit([&](const auto& kind) { return this->cut(kind, step, word, at_start); }, chain_.steps_[step]);
  }

 private:
  Status cut(const Split& split, size_t step, std::string_view word, bool at_start);
  Status cut(const ByteLevel& byte_level, size_t step, std::string_view word, bool at_start);
  Status cut(const Metaspace& metaspace, size_t step, std::string_view word, bool at_start);
  Status cut(const CharacterSplit& split, size_t step, std::string_view word, bool at_start);
  Status cut(const Whitespace& whitespace, size_t step, std::string_view word, bool at_start);

  const PreTokenizerChain& chain_;
  PreTokenizerScratch& scratch_;
  const Sink& sink_;
};

// Joins and drops the texts between and at the matches as a behavior asks, and hands the results to the next step.
class PreTokenizerChain::Splitter {
 public:
  Splitter(Run& run, size_t step, std::string_view word, bool at_start, Behavior behavior)
      : run_(run), step_(step), word_(word), at_start_(at_start), behavior_(behavior) {}

  // Everything from the last match up to `begin` is no match; [begin, end) is one.
  Status match(size_t begin, size_t end, bool invert) {
    if (begin > done_) RETURN_IF_ERROR(add(done_, begin, invert));
    done_ = end;
    return add(begin, end, !invert);
  }

  Status finish(bool invert) {
    if (done_ < word_.size()) RETURN_IF_ERROR(add(done_, word_.size(), invert));
    return settle();
  }

 private:
  Status add(size_t begin, size_t end, bool is_match) {
    const bool before = held_ && held_match_;
    switch (behavior_) {
      case Behavior::kRemoved:
        return is_match ? ok_status() : emit(begin, end);
      case Behavior::kIsolated:
        return emit(begin, end);
      case Behavior::kContiguous:
        if (held_ && before == is_match) return extend(end, is_match);
        break;
      case Behavior::kMergedWithPrevious:
        if (held_ && is_match && !before) return extend(end, is_match);
        break;
      case Behavior::kMergedWithNext:
        if (held_ && before && !is_match) return extend(end, is_match);
        break;
    }
    RETURN_IF_ERROR(settle());
    held_ = true;
    held_match_ = is_match;
    held_begin_ = begin;
    held_end_ = end;
    return ok_status();
  }

  Status extend(size_t end, bool is_match) {
    CHECK(held_ && end >= held_end_);
    held_end_ = end;
    held_match_ = is_match;
    return ok_status();
  }

  Status settle() {
    if (!held_) return ok_status();
    held_ = false;
    return emit(held_begin_, held_end_);
  }

  Status emit(size_t begin, size_t end) {
    return run_.apply(step_ + 1, word_.substr(begin, end - begin), at_start_ && begin == 0);
  }

  Run& run_;
  size_t step_;
  std::string_view word_;
  bool at_start_;
  Behavior behavior_;
  size_t done_ = 0;
  bool held_ = false;
  bool held_match_ = false;
  size_t held_begin_ = 0;
  size_t held_end_ = 0;
};

Status PreTokenizerChain::Run::cut(const Split& split, size_t step, std::string_view word, bool at_start) {
  RegexMatches matches(split.pattern, scratch_.regex, word);
  Splitter splitter(*this, step, word, at_start, split.behavior);
  size_t begin = 0, end = 0;
  while (true) {
    ASSIGN_OR_RETURN(const bool found, matches.next(begin, end));
    if (!found) break;
    RETURN_IF_ERROR(splitter.match(begin, end, split.invert));
  }
  return splitter.finish(split.invert);
}

Status PreTokenizerChain::Run::cut(const ByteLevel& byte_level, size_t step, std::string_view word, bool at_start) {
  if (!byte_level.add_prefix_space || word.starts_with(' ')) return apply(step + 1, word, at_start);
  std::string& rewritten = scratch_.rewritten[step];
  rewritten.assign(" ").append(word);
  return apply(step + 1, rewritten, at_start);
}

Status PreTokenizerChain::Run::cut(const Metaspace& metaspace, size_t step, std::string_view word, bool at_start) {
  std::string& rewritten = scratch_.rewritten[step];
  rewritten.clear();
  const bool has_prefix = word.starts_with(' ') || word.starts_with(metaspace.replacement);
  const bool wanted = metaspace.prepend == Prepend::kAlways || (metaspace.prepend == Prepend::kFirst && at_start);
  if (wanted && !has_prefix) rewritten.append(metaspace.replacement);
  for (const char c : word) {
    if (c == ' ') {
      rewritten.append(metaspace.replacement);
    } else {
      rewritten += c;
    }
  }
  if (!metaspace.split) return apply(step + 1, rewritten, at_start);
  const std::string_view text = rewritten;
  Splitter splitter(*this, step, text, at_start, Behavior::kMergedWithNext);
  const size_t size = metaspace.replacement.size();
  for (size_t at = 0; (at = text.find(metaspace.replacement, at)) != std::string_view::npos; at += size) {
    RETURN_IF_ERROR(splitter.match(at, at + size, false));
  }
  return splitter.finish(false);
}

Status PreTokenizerChain::Run::cut(const CharacterSplit& split, size_t step, std::string_view word, bool at_start) {
  Splitter splitter(*this, step, word, at_start, split.behavior);
  for (size_t at = 0; at < word.size();) {
    const CodePoint c = utf8_at(word, at);
    if (split.matches(c.value)) RETURN_IF_ERROR(splitter.match(at, at + c.size_bytes, false));
    at += c.size_bytes;
  }
  return splitter.finish(false);
}

// \w+|[^\w\s]+ : runs of word characters and runs of what is neither that nor space.
Status PreTokenizerChain::Run::cut(const Whitespace&, size_t step, std::string_view word, bool at_start) {
  enum class Kind { kSpace, kWord, kOther };
  const auto kind_of = [](char32_t c) { return is_word(c) ? Kind::kWord : is_space(c) ? Kind::kSpace : Kind::kOther; };
  for (size_t begin = 0; begin < word.size();) {
    const CodePoint first = utf8_at(word, begin);
    const Kind kind = kind_of(first.value);
    size_t end = begin + first.size_bytes;
    while (end < word.size() && kind_of(utf8_at(word, end).value) == kind) end += utf8_at(word, end).size_bytes;
    if (kind != Kind::kSpace) RETURN_IF_ERROR(apply(step + 1, word.substr(begin, end - begin), at_start && begin == 0));
    begin = end;
  }
  return ok_status();
}

Status PreTokenizerChain::run(std::string_view text, bool at_start, PreTokenizerScratch& scratch,
                              const Sink& sink) const {
  return Run(*this, scratch, sink).apply(0, text, at_start);
}

}  // namespace millrace
