// PipelineSpec: what a file may have, and the line, the value and the wish in every complaint.
#include "pipeline/spec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <sstream>

#include "stages/stage_loop.h"

namespace millrace {
namespace {

Library library() {
  Library out;
  out.workers["work"] = [](const Value&, const Library::WorkerSlot&) {
    return Result<std::unique_ptr<Worker>>(nullptr);
  };
  out.workers["sink"] = out.workers["work"];
  out.routes["some"] = [](ReqId, const Value&) { return Result<std::vector<std::string>>(std::vector<std::string>{}); };
  out.wait_rules["those"] = [](ReqId, const std::string&, const Value&) {
    return Result<std::optional<std::vector<std::string>>>(std::nullopt);
  };
  out.merges["join"] = [](std::map<std::string, Value>) { return Result<Value>(Value()); };
  out.projections["part"] = [](const Value& value) { return Result<Value>(value); };
  out.terminal_rules["ends"] = [](const Value&) {
    return Result<std::vector<std::string>>(std::vector<std::string>{});
  };
  return out;
}

Result<PipelineSpec> parse(std::string_view yaml) { return parse_pipeline(yaml, "p.yaml", library()); }

TEST(PipelineSpec, ARelayMustReachItsTargets) {
  const auto spec = parse(R"(
name: all
entry: a
terminals_rule: ends
relay: {backend: tcp, pool_mib: 64, credits: 3, lease_ms: 500}
request_timeout_s: 9
max_requests: 17
control: "tcp://127.0.0.1:30100"
key_file: secret.key
env_defaults: {OMP_NUM_THREADS: "1"}
stages:
  - name: a
    worker: work
    args: {n: 3, x: 0.5, on: true, word: "7", list: [1, [2]], none: null}
    next: [b, c]
    route: some
    project_payload: {b: part}
    process: left
    env: {A: b}
  - {name: b, worker: work, next: c, stream_to: [c], stream_done_to: some, replicas: 3, process: many, relay: shm}
  - name: c
    worker: sink
    terminal: true
    wait_for: [a, b]
    wait_for_rule: those
    merge: join
    can_accept_stream_before_payload: true
    host: other
    relay: {credits: 5}
    resources: {threads: 2, memory_mib: 100, max_requests: 4}
)");
  ASSERT_FALSE(spec.ok());  // shm does not reach another host
  EXPECT_NE(
      spec.status().message().find("p.yaml:20: relay of stage 'b' is 'shm', and its target 'c' is in another host"),
      std::string::npos)
      << spec.status().message();
}

constexpr std::string_view kGood = R"(name: good
request_timeout_s: 9
relay: {backend: tcp, pool_mib: 64, credits: 3}
stages:
  - name: a
    worker: work
    args: {n: 3, x: 0.5, on: true, word: "7", list: [1, [2]], none: null}
    next: [b, c]
    route: some
    project_payload: {b: part}
  - {name: b, worker: work, next: c, stream_to: [c], stream_done_to: some, replicas: 3}
  - name: c
    worker: sink
    terminal: true
    wait_for: [a, b]
    wait_for_rule: those
    merge: join
    can_accept_stream_before_payload: true
    relay: {credits: 5}
    resources: {threads: 2, memory_mib: 100, max_requests: 4}
)";

TEST(PipelineSpec, ALease) {
  const auto spec = parse("lease_ms: 8000\n" + std::string(kGood));
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->lease_ms, 8000);
  const auto wrong = parse("lease_ms: 499\n" + std::string(kGood));
  EXPECT_NE(wrong.status().message().find(
                "p.yaml:1: lease_ms of the pipeline is '499'; wanted an integer from 500 to 600000"),
            std::string::npos)
      << wrong.status().message();
}

TEST(PipelineSpec, ValuesAndDefaults) {
  const auto spec = parse(kGood);
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->entry, "a");
  EXPECT_EQ(spec->request_timeout_s, 9);
  EXPECT_EQ(spec->lease_ms, 0);
  EXPECT_EQ(spec->terminals(), std::vector<std::string>{"c"});
  const StageSpec& a = spec->stages[0];
  EXPECT_EQ(a.line, 5);
  EXPECT_EQ(a.process, "a");
  EXPECT_EQ(*a.args.find("n")->get<int64_t>(), 3);
  EXPECT_EQ(*a.args.find("x")->get<double>(), 0.5);
  EXPECT_TRUE(*a.args.find("on")->get<bool>());
  EXPECT_EQ(*a.args.find("word")->get<std::string>(), "7");
  EXPECT_TRUE(a.args.find("none")->is<std::monostate>());
  EXPECT_EQ(*a.args.find("list")->get<ValueList>()->at(1).get<ValueList>()->at(0).get<int64_t>(), 2);
  const StageSpec& c = spec->stages[2];
  EXPECT_EQ(c.relay.backend, "tcp");
  EXPECT_EQ(c.relay.pool_mib, 64);
  EXPECT_EQ(c.relay.credits, 5);
  EXPECT_EQ(c.resources.max_requests, 4);
  EXPECT_EQ(spec->find("b")->next, std::vector<std::string>{"c"});
}

TEST(PipelineSpec, AStageMayHaveAnotherTimeToStall) {
  const auto usual = parse(kGood);
  ASSERT_TRUE(usual.ok());
  EXPECT_EQ(usual->find("b")->stalled_ms, 1500);
  EXPECT_EQ(to_svg(*usual).find("stall"), std::string::npos);
  const std::pair<const char*, const char*> cases[] = {{"20500", "b, stalls at 20.5 s"}, {"0", "b, never stalls"}};
  for (const auto& [ms, drawn] : cases) {
    std::string text(kGood);
    text.replace(text.find("replicas: 3"), 11, fmt::format("stalled_ms: {}", ms));
    const auto changed = parse(text);
    ASSERT_TRUE(changed.ok()) << changed.status().message();
    EXPECT_EQ(fmt::format("{}", changed->find("b")->stalled_ms), ms);
    EXPECT_NE(changed->hash(), usual->hash());
    EXPECT_NE(to_svg(*changed).find(drawn), std::string::npos);
    EXPECT_EQ(make_loop_config(changed->stages, changed->entry, "b").value().stalled_ms,
              changed->find("b")->stalled_ms);
  }
}

TEST(PipelineSpec, ComplaintsNameLineValueAndWish) {
  const struct {
    std::string_view old_text, new_text, wanted;
  } cases[] = {
      {"next: c,", "next: d,",
       "p.yaml:11: next of stage 'b' is 'd'; wanted the name of a stage; there are 'a', 'b', 'c'"},
      {"next: c,", "next: b,", "p.yaml:11: next of stage 'b' is the stage itself"},
      {"next: c,", "", "p.yaml:11: stage 'b' has no next and is not terminal"},
      {"    terminal: true", "    terminal: true\n    next: a", "stage 'c' is terminal and has next"},
      {"next: [b, c]", "next: [b, b]", "p.yaml:8: next of stage 'a' names 'b' twice"},
      {"next: [b, c]", "nxt: [b, c]", "p.yaml:8: stage 'a' has the unknown key 'nxt'; perhaps 'next'"},
      {"replicas: 3", "stalled_ms: 99",
       "p.yaml:11: stalled_ms of stage 'b' is '99'; wanted 0 (never) or an integer from 100 to 86400000"},
      {"replicas: 3", "stalled_ms: -1", "p.yaml:11: stalled_ms of stage 'b' is '-1'; wanted 0 (never) or"},
      {"replicas: 3", "stalled_ms: soon", "p.yaml:11: stalled_ms of stage 'b' is 'soon'; wanted 0 (never) or"},
      {"replicas: 3", "stall_ms: 200", "p.yaml:11: stage 'b' has the unknown key 'stall_ms'; perhaps 'stalled_ms'"},
      {"replicas: 3", "replicas: 0", "p.yaml:11: replicas of stage 'b' is '0'; wanted an integer from 1 to"},
      {"replicas: 3", "replicas: \"3\"", "p.yaml:11: replicas of stage 'b' is '3'; wanted an integer"},
      {"replicas: 3", "replicas: 3, process: a", "share the process 'a', and one has replicas"},
      {"replicas: 3", "replicas: 3, replica_policy: prefix_aware",
       "p.yaml:11: replica_policy of stage 'b' is 'prefix_aware'; wanted round_robin or least_requests"},
      {"terminal: true", "terminal: perhaps", "p.yaml:14: terminal of stage 'c' is 'perhaps'; wanted true or false"},
      {"worker: sink", "worker: sinc",
       "p.yaml:13: worker of stage 'c' is 'sinc'; wanted one of this program's 2; perhaps 'sink'"},
      {"worker: sink", "route: some", "stage 'c' has no worker"},
      {"worker: sink", "worker: sink\n    route: some", "stage 'c' has route without next"},
      {"    merge: join\n", "", "stage 'c' waits for 2 payloads and has no merge"},
      {"wait_for: [a, b]", "wait_for: [a]", "stage 'c' gets payloads of 'b' and does not wait for it"},
      {"    wait_for: [a, b]\n", "", "p.yaml:15: stage 'c' has wait_for_rule without wait_for"},
      {"{b: part}", "{c: pat}",
       "project_payload of stage 'a' is 'pat'; wanted one of this program's 1; perhaps 'part'"},
      {"{b: part}", "{d: part}", "project_payload of stage 'a' names 'd'; wanted one of next: [b, c]"},
      {"{b: part}", "[b]", "project_payload of stage 'a' is a list; wanted a map of texts"},
      {"backend: tcp", "backend: udp", "relay of stage 'a' is 'udp'; wanted one of auto, local"},
      {"backend: tcp", "backend: local", "relay of stage 'a' is 'local', and its target 'b' is in another process"},
      {"name: c", "name: coordinator", "a stage is called 'coordinator', the name of the coordinator"},
      {"name: c", "name: a", "there are two stages 'a'"},
      {"name: c", "name: \"c c\"", "the name of a stage is 'c c'; wanted 1 to 64 letters"},
      {"name: good", "entry: x", "p.yaml:1: entry of the pipeline is 'x'; wanted the name of a stage"},
      {"name: good", "name: good\nname: better", "p.yaml:2: the pipeline has the key 'name' twice"},
      {"name: good", "entry: b", "stage 'a' is reached by no payload from the entry 'b'"},
      {"name: good", "terminals_rule: endz", "terminals_rule of the pipeline is 'endz'"},
      {"credits: 5", "credits: many", "p.yaml:19: credits of relay of stage 'c' is 'many'; wanted an integer from 1"},
      {"threads: 2", "threads: -2", "threads of resources of stage 'c' is '-2'"},
      {"worker: sink", "worker: sink\n    host: far",
       "stage 'c' runs on host 'far', which finds this one by the pipeline's control"},
      {"wait_for_rule: those", "wait_for_rule: those\n    env: {\"a=b\": c}",
       "p.yaml:17: env of stage 'c' has the variable 'a=b'; wanted a name without '='"},
      {"name: good", "name: good\nenv_defaults: {\"\": c}",
       "p.yaml:2: env_defaults of the pipeline has the variable ''"},
      {"name: good", "name: good\nenv_defaults: {a: \"b\\0c\"}", "p.yaml:2: env_defaults of the pipeline has the"},
      {"wait_for_rule: those", "wait_for_rule: those\n    process: front\n    env: {a: b}",
       "p.yaml:18: stage 'c' has env and is in the process 'front', whose environment is the server's"},
      {"wait_for_rule: those", "wait_for_rule: those\n    host: far\n    env: {a: b}",
       "p.yaml:18: stage 'c' has env and runs on host 'far', where the joining process sets the environment"},
      {"stages:", "stages: 3\nother:", "stages is '3' of 0; wanted a list of 1 to 64 stages"},
      {"name: good", "\tname: good", "p.yaml:1: not YAML"},
  };
  for (const auto& c : cases) {
    std::string yaml(kGood);
    const std::size_t at = yaml.find(c.old_text);
    ASSERT_NE(at, std::string::npos) << c.old_text;
    yaml.replace(at, c.old_text.size(), c.new_text);
    const auto spec = parse(yaml);
    ASSERT_FALSE(spec.ok()) << c.new_text;
    EXPECT_EQ(spec.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(spec.status().message().find(c.wanted), std::string::npos)
        << "wanted: " << c.wanted << "\nseen:   " << spec.status().message();
  }
}

// The replicas of a stage are the processes NAME-0, NAME-1, ..: another stage in one of them would lose its env.
TEST(PipelineSpec, AReplicasProcessHasNoOtherStage) {
  const std::string one = R"(entry: a
stages:
  - {name: a, worker: work, next: a-0, replicas: 2}
  - {name: a-0, worker: sink, terminal: true, env: {X: one}}
)";
  const auto spec = parse(one);
  ASSERT_FALSE(spec.ok());
  EXPECT_NE(spec.status().message().find("p.yaml:4: stage 'a-0' has the process 'a-0', which is a replica's of stage "
                                         "'a'; wanted another name"),
            std::string::npos)
      << spec.status().message();
  // Names that no replica has, or that of a stage without replicas.
  for (const char* name : {"a-2", "a-00", "a-", "a-x", "-0", "a-99999999999999999999"}) {
    std::string other = one;
    other.replace(other.find("terminal: true"), 0, fmt::format("process: \"{}\", ", name));
    const auto fits = parse(other);
    EXPECT_TRUE(fits.ok()) << name << ": " << fits.status().message();
  }
  std::string single = one;
  single.replace(single.find(", replicas: 2"), 13, "");
  EXPECT_TRUE(parse(single).ok());
}

TEST(PipelineSpec, AProcessHasOneEnvironment) {
  const std::string yaml = R"(stages:
  - {name: a, worker: work, next: b, process: p, env: {X: one, Y: two}}
  - {name: b, worker: work, next: c, process: p, env: {Y: two, Z: "three"}}
  - {name: c, worker: sink, terminal: true}
)";
  const auto spec = parse(yaml);
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const std::map<std::string, std::string> together = {{"X", "one"}, {"Y", "two"}, {"Z", "three"}};
  EXPECT_EQ(spec->env_of({"a", "b"}), together);
  EXPECT_TRUE(spec->env_of({"c"}).empty());
  EXPECT_EQ(spec->may_be_single("p.yaml").message(),
            "p.yaml:2: stage 'a' has env, and no process of its own with --placement single");
  EXPECT_TRUE(parse(kGood)->may_be_single("p.yaml").ok());
  const auto other = parse(std::regex_replace(yaml, std::regex("two, Z"), "2, Z"));
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().message(),
            "p.yaml:3: stages 'a' and 'b' share the process 'p', and their env gives 'Y' two values");
}

TEST(PipelineSpec, CyclesAreReportedAsAPath) {
  const auto spec = parse(R"(stages:
  - {name: a, worker: work, next: b}
  - {name: b, worker: work, next: c}
  - {name: c, worker: work, next: [d, e]}
  - {name: d, worker: work, next: e, stream_to: b}
  - {name: e, worker: sink, terminal: true}
)");
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().message(), "p.yaml:3: the stages form a cycle: b -> c -> d -> b");
}

TEST(PipelineSpec, HostileFilesEndWell) {
  for (const std::string& yaml :
       {std::string(), std::string("- a"), std::string("stages: []"), std::string("stages: [1, 2]"),
        std::string("? [a]\n: b"), std::string("stages:\n  - {name: [a], worker: {}}"), std::string(100'000, '['),
        std::string("stages: &a [*a]"), std::string("a: *b"), std::string("\xff\xfe\x00", 3)}) {
    EXPECT_FALSE(parse(yaml).ok()) << yaml.substr(0, 40);
  }
  EXPECT_EQ(parse(std::string(kMaxSpecBytes + 1, ' ')).status().code(), StatusCode::kTooLarge);
  // Nine lists of nine aliases each: 9^9 values if all are unfolded.
  std::string bomb = "stages:\n  - name: a\n    worker: sink\n    terminal: true\n    args:\n      l0: &l0 [0]\n";
  for (int i = 1; i <= 9; ++i) {
    bomb += "      l" + std::to_string(i) + ": &l" + std::to_string(i) + " [";
    for (int j = 0; j < 9; ++j) bomb += (j ? ", *l" : "*l") + std::to_string(i - 1);
    bomb += "]\n";
  }
  const auto spec = parse(bomb);
  ASSERT_FALSE(spec.ok());
  EXPECT_NE(spec.status().message().find("unfold to over"), std::string::npos) << spec.status().message();
}

// Each host would take the first of two, and the hash would be one without args.
TEST(PipelineSpec, ArgsThatCannotBeHashedAreRefused) {
  const auto refusal = [](const std::string& args) {
    const auto spec = parse("stages:\n  - name: a\n    worker: sink\n    terminal: true\n    args:\n" + args);
    return spec.ok() ? "" : spec.status().message();
  };
  EXPECT_EQ(refusal("      n: 1\n      m: {n: 2}\n"), "");
  EXPECT_EQ(refusal("      n: 1\n      m: 2\n      n: 3\n"), "p.yaml:8: args of stage 'a' have the key 'n' twice");
  EXPECT_EQ(refusal("      l:\n        - {n: 1}\n        - {n: 1,\n           n: 2}\n"),
            "p.yaml:9: args of stage 'a' have the key 'n' twice");
  EXPECT_EQ(refusal("      ? [n]\n      : 1\n"), "p.yaml:6: args of stage 'a' have a key that is a list; wanted text");
  const std::string cannot = "p.yaml:6: args of stage 'a' cannot be compared with those of other hosts: payload: at ";
  EXPECT_EQ(refusal("      n: \"\xff\"\n"), cannot + "n: byte 0xff at offset 0 of a string; wanted UTF-8, or bytes");
  const std::string deep = refusal("      n: " + std::string(40, '[') + std::string(40, ']') + "\n");
  EXPECT_EQ(deep.substr(0, cannot.size() + 4), cannot + "n[0]");
  EXPECT_NE(deep.find("a container inside 32 others; wanted fewer"), std::string::npos) << deep;
}

// Where each key stands on a separate line, its errors stand there; and no error hides one of another kind.
TEST(PipelineSpec, AllErrorsComeAtOnceEachWithTheLineOfItsKey) {
  const auto spec = parse(R"(name: many
entry: first
terminals_rule: endz
request_timeout_s: 9
stages:
  - name: a
    worker: work
    next: b
    relay: udp
  - name: b
    worker: sinc
    next:
      c
  - name: c
    worker: work
    next: d
    stream_to: b
  - name: d
    worker: sink
    terminal: true
    replicas: many
  - name: "e e"
    worker: sink
    terminal: true
    merge: joyn
    process:
      p/q
)");
  ASSERT_FALSE(spec.ok());
  std::istringstream lines(spec.status().message());
  std::vector<std::string> seen;
  for (std::string line; std::getline(lines, line);) seen.push_back(line.substr(0, line.find("; wanted")));
  std::sort(seen.begin(), seen.end());
  const std::vector<std::string> wanted = {
      "p.yaml:10: the stages form a cycle: b -> c -> b",    "p.yaml:11: worker of stage 'b' is 'sinc'",
      "p.yaml:21: replicas of stage 'd' is 'many'",         "p.yaml:22: the name of a stage is 'e e'",
      "p.yaml:25: merge of stage 'e e' is 'joyn'",          "p.yaml:25: stage 'e e' has merge without wait_for",
      "p.yaml:26: process of stage 'e e' is 'p/q'",         "p.yaml:2: entry of the pipeline is 'first'",
      "p.yaml:3: terminals_rule of the pipeline is 'endz'", "p.yaml:9: relay of stage 'a' is 'udp'",
  };
  EXPECT_EQ(seen, wanted);
}

// What follows from an error is not reported as another one.
TEST(PipelineSpec, OneErrorIsReportedOnce) {
  const struct {
    std::string_view old_text, new_text;
  } cases[] = {
      {"next: c,", "nxt: c,"},
      {"next: c,", "next: {x: c},"},
      {"next: [b, c]", "next: [b, d]"},
      {"name: good", "entry: x"},
      {"name: good", "entry: [b]"},
      {"name: c", "nam: c"},
      {"name: c", "name: {c: c}"},
      {"worker: sink", "worker: {x: y}"},
      {"terminal: true", "terminal: perhaps"},
      {"replicas: 3", "replicas: many"},
      {"wait_for: [a, b]", "wait_fr: [a, b]"},
      {"name: good", "relay: {x: y}"},
  };
  for (const auto& c : cases) {
    std::string yaml(kGood);
    if (c.new_text.starts_with("relay"))
      yaml.erase(yaml.find("relay: {backend"), yaml.find("stages:") - yaml.find("relay: {backend"));
    yaml.replace(yaml.find(c.old_text), c.old_text.size(), c.new_text);
    const auto spec = parse(yaml);
    ASSERT_FALSE(spec.ok()) << c.new_text;
    EXPECT_EQ(spec.status().message().find('\n'), std::string::npos) << spec.status().message();
  }
}

TEST(PipelineSpec, ManyErrorsComeTogetherAndAreCounted) {
  std::string yaml = "stages:\n";
  for (int i = 0; i < 30; ++i) yaml += "  - {name: s" + std::to_string(i) + ", worker: none, terminal: true}\n";
  const auto spec = parse(yaml);
  ASSERT_FALSE(spec.ok());
  // 30 workers; and 29 stages that nothing reaches.
  EXPECT_NE(spec.status().message().find("... and 39 more"), std::string::npos) << spec.status().message();
}

TEST(PipelineSpec, EqualPipelinesHaveEqualHashesWhateverTheFileLooksLike) {
  const auto one = parse(kGood);
  const auto two = parse("# a comment\n" + std::string(kGood));
  std::string changed(kGood);
  changed.replace(changed.find("n: 3"), 4, "n: 4");
  const auto three = parse(changed);
  ASSERT_TRUE(one.ok() && two.ok() && three.ok());
  EXPECT_EQ(one->hash(), two->hash());
  EXPECT_NE(one->hash(), three->hash());
}

TEST(PipelineSpec, PicturesHoldEveryStageAndEdge) {
  auto spec = parse(kGood);
  ASSERT_TRUE(spec.ok());
  spec->name = "a<b>&\"c\"";
  const std::string dot = to_dot(*spec), svg = to_svg(*spec);
  for (const char* part :
       {"\"a\" -> \"b\";", "\"a\" -> \"c\";", "\"b\" -> \"c\";", "\"b\" -> \"c\" [style=dashed];", "peripheries=2"}) {
    EXPECT_NE(dot.find(part), std::string::npos) << part << "\n" << dot;
  }
  for (const char* part : {">a</text>", ">work x 3</text>", "a&lt;b&gt;&amp;&quot;c&quot;", "stroke-dasharray"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  std::size_t paths = 0;
  for (std::size_t at = svg.find("marker-end"); at != svg.npos; at = svg.find("marker-end", at + 1)) ++paths;
  EXPECT_EQ(paths, 4u);
}

}  // namespace
}  // namespace millrace
