// The bounds of one template and of one render. Each violation is a Status with the line of the template.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::jinja {

struct Limits {
  // Parsing. Real chat templates are 1 to 20 KB and nest less than 15 deep.
  size_t max_source_bytes = size_t{1} << 20;
  int max_parse_depth = 200;       // statements within statements, and expressions within expressions
  int max_expression_depth = 250;  // height of one expression tree; `a + b + c` is as high as it has terms

  // Evaluation: one step is one node visited, one item produced or 64 bytes of text copied.
  int max_eval_depth = 700;  // nodes within nodes at run time, macro calls included; about 500 bytes of stack each
  int64_t max_steps = 10'000'000;  // one to two seconds
  // CPU time of the thread: what a step takes differs, and others wait for the thread that renders.
  int64_t max_cpu_ms = 2000;
  size_t max_output_bytes = size_t{32} << 20;
  size_t max_string_bytes = size_t{32} << 20;  // of one string value, repetition included
  size_t max_alloc_bytes = size_t{1} << 29;    // of all values made during one render, freed ones included
  int64_t max_range_items = 100'000;           // as in Jinja's sandbox
  size_t max_list_items = 4'000'000;           // of one list, repetition included
};

// Lists within lists. Values are immutable, so their depth is known when they are made; namespaces do not count.
inline constexpr int kMaxValueDepth = 120;

}  // namespace millrace::jinja
