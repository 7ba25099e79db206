// The JSON with which a trainer announces its group and its buckets. What is accepted is written and read again the
// same.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "stages/weight_plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<Json> body = parse_json({reinterpret_cast<const char*>(data), size});
  if (!body.ok() || !body->is_object()) return 0;
  if (const auto plan = read_weight_plan(*body); plan.ok()) {
    const std::string text = to_json(*plan, plan->base_version);
    CHECK(to_json(*read_weight_plan(*parse_json(text)), plan->base_version) == text);
  }
  if (const auto group = read_trainer_group(*body); group.ok()) {
    CHECK(to_json(*read_trainer_group(*parse_json(to_json(*group)))) == to_json(*group));
  }
  return 0;
}
