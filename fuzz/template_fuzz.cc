// Any bytes as a chat template over a fixed conversation: a Status or a prompt, never a crash or a hang.
#include <cstdint>
#include <string>

#include "text/jinja/template.h"
#include "text/json_value.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using millrace::jinja::Value;
  static const Value kMessages = *millrace::parse_json_value(
      R"([{"role":"system","content":"s"},{"role":"user","content":"é <|im_end|>","n":[1,2.5,null,true]},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"a":"b"}}}]}])",
      64);
  millrace::jinja::Limits limits;
  limits.max_steps = 20'000;
  limits.max_output_bytes = 1 << 16;
  limits.max_string_bytes = 1 << 16;
  limits.max_alloc_bytes = 1 << 24;
  limits.max_list_items = 10'000;
  auto parsed =
      millrace::jinja::Template::parse(std::string(reinterpret_cast<const char*>(data), size), "fuzz", limits);
  if (!parsed.ok()) return 0;
  auto out = parsed->render({{"messages", kMessages},
                             {"tools", Value()},
                             {"bos_token", Value::string("<s>", true)},
                             {"add_generation_prompt", Value::boolean(true)}},
                            0);
  if (!out.ok()) return 0;
  size_t total = 0;
  for (const auto& segment : out->segments()) total += segment.text.size();
  if (total != out->size()) __builtin_trap();
  return 0;
}
