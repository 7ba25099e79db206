// Which relays every process of a pipeline has.
#include "app/pipeline_place.h"

#include <gtest/gtest.h>

#include "app/library.h"

namespace millrace {
namespace {

// What clients submit goes through the pipeline's own relay, so whoever reads it needs that one too.
TEST(PipelinePlace, ThePipelinesRelayIsLoadedWhereEveryStageHasItsOwn) {
  constexpr std::string_view kYaml = R"(relay: tcp
stages:
  - {name: a, worker: toy.preprocess, next: b, relay: auto}
  - {name: b, worker: toy.decode, terminal: true, relay: auto}
)";
  const auto spec = parse_pipeline(kYaml, "p.yaml", make_library());
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const auto place = PipelinePlace::make(*spec, "/tmp", "");
  ASSERT_TRUE(place.ok()) << place.status().message();
  for (const RelaySpec& who : {spec->relay, spec->stages[0].relay}) {
    const auto relays = place->relays(who);
    ASSERT_TRUE(relays.ok()) << relays.status().message();
    EXPECT_TRUE(relays->contains("tcp"));
  }
}

}  // namespace
}  // namespace millrace
