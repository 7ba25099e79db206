// The pages of two servers as one: families once, each series with its model.
#include "app/router/metrics_merge.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(MetricsMergeTest, GivesEachSeriesItsModel) {
  const std::string a =
      "# HELP x_total How many.\n# TYPE x_total counter\nx_total{model_name=\"a\"} 1\n"
      "# HELP h Times.\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum 0.5\nh_count 2\n";
  const std::string b =
      "# HELP x_total Another help.\n# TYPE x_total counter\nx_total 3\n# HELP y New.\n# TYPE y gauge\ny 4\n";
  EXPECT_EQ(merge_metrics({{"a", a}, {"org/\"b\"", b}}),
            "# HELP x_total How many.\n# TYPE x_total counter\n"
            "x_total{model=\"a\",model_name=\"a\"} 1\nx_total{model=\"org/\\\"b\\\"\"} 3\n"
            "# HELP h Times.\n# TYPE h histogram\nh_bucket{model=\"a\",le=\"+Inf\"} 2\nh_sum{model=\"a\"} 0.5\n"
            "h_count{model=\"a\"} 2\n"
            "# HELP y New.\n# TYPE y gauge\ny{model=\"org/\\\"b\\\"\"} 4\n");
  EXPECT_EQ(merge_metrics({}), "");
}

}  // namespace
}  // namespace millrace
