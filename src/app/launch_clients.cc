#include "app/launch_clients.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace millrace {
namespace {

constexpr char kNoKey[] = "unused";  // clients want one
constexpr char kKeyVariable[] = "MILLRACE_API_KEY";

std::string key_of(const LaunchTarget& target) { return target.api_key.empty() ? kNoKey : target.api_key; }

int64_t output_of(const LaunchTarget& target) { return std::min(kLaunchOutputTokens, target.context / 4); }

LaunchPlan codex(const LaunchTarget& target) {
  LaunchPlan plan{.program = "codex", .install = "npm install -g @openai/codex"};
  plan.file = target.folder + "/config.toml";
  plan.text = fmt::format(
      "model = {}\nmodel_provider = \"millrace\"\nmodel_context_window = {}\n"
      "web_search = \"disabled\"  # a tool that only OpenAI runs\n\n"
      "[features]\nmulti_agent = false  # its tools are of a type that is not served\n\n"
      "[model_providers.millrace]\nname = \"Millrace\"\nbase_url = {}\nwire_api = \"responses\"\n",
      json_quoted(target.model), target.context, json_quoted(target.url + "/v1"));
  if (!target.api_key.empty()) plan.text += fmt::format("env_key = \"{}\"\n", kKeyVariable);
  plan.env["CODEX_HOME"] = target.folder;
  if (!target.api_key.empty()) plan.env[kKeyVariable] = target.api_key;
  return plan;
}

LaunchPlan opencode(const LaunchTarget& target) {
  const std::string model = "millrace/" + target.model;
  const Json limit = {{"context", target.context}, {"output", output_of(target)}};
  const Json settings = {{"$schema", "https://opencode.ai/config.json"},
                         {"model", model},
                         {"small_model", model},
                         {"provider",
                          {{"millrace",
                            {{"npm", "@ai-sdk/openai-compatible"},
                             {"name", "Millrace"},
                             {"options", {{"baseURL", target.url + "/v1"}, {"apiKey", key_of(target)}}},
                             {"models", {{target.model, {{"name", target.model}, {"limit", limit}}}}}}}}}};
  LaunchPlan plan{.program = "opencode", .install = "npm install -g opencode-ai"};
  plan.file = target.folder + "/opencode.json";
  plan.text = settings.dump(2) + "\n";
  plan.env["OPENCODE_CONFIG"] = plan.file;
  return plan;
}

LaunchPlan continue_cli(const LaunchTarget& target) {
  LaunchPlan plan{.program = "cn", .install = "npm install -g @continuedev/cli"};
  plan.file = target.folder + "/config.yaml";
  plan.text = fmt::format(
      "name: local\nversion: 0.0.1\nschema: v1\nmodels:\n  - name: Millrace\n    provider: openai\n    model: {}\n"
      "    apiBase: {}\n    apiKey: {}\n    roles: [chat, edit, apply]\n",
      json_quoted(target.model), json_quoted(target.url + "/v1"), json_quoted(key_of(target)));
  plan.arguments = {"--config", plan.file};
  return plan;
}

LaunchPlan claude(const LaunchTarget& target) {
  LaunchPlan plan{.program = "claude", .install = "npm install -g @anthropic-ai/claude-code"};
  plan.env = {{"ANTHROPIC_BASE_URL", target.url},
              {"ANTHROPIC_AUTH_TOKEN", key_of(target)},
              {"ANTHROPIC_MODEL", target.model},
              {"ANTHROPIC_DEFAULT_HAIKU_MODEL", target.model},
              {"CLAUDE_CODE_MAX_OUTPUT_TOKENS", std::to_string(output_of(target))},
              {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"}};
  return plan;
}

struct Client {
  const char* name;
  LaunchPlan (*plan)(const LaunchTarget&);
};

constexpr Client kClients[] = {
    {"codex", codex}, {"opencode", opencode}, {"continue", continue_cli}, {"claude", claude}};

}  // namespace

std::vector<std::string> launch_clients() {
  std::vector<std::string> out;
  for (const Client& each : kClients) out.emplace_back(each.name);
  return out;
}

std::optional<LaunchPlan> launch_plan(const std::string& client, const LaunchTarget& target) {
  for (const Client& each : kClients) {
    if (client == each.name) return each.plan(target);
  }
  return std::nullopt;
}

}  // namespace millrace
