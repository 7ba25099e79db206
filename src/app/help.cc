#include "app/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {
namespace {

constexpr std::size_t kHelpWidth = 110;  // of a line

struct Examples {
  std::string_view command;
  std::string_view text;
};

constexpr std::array kExamples = {
    Examples{"serve",
             "  millrace serve ~/models/Qwen3-0.6B\n"
             "  millrace serve ORG/NAME:Q4_K_M --port 8000 --api-key KEY\n"
             "  millrace serve model.gguf --threads 8 --context-length 32768\n"
             "  millrace serve --models-dir ~/models --model-ttl 600\n"
             "  MILLRACE_KV_DTYPE=int8 millrace serve --config millrace.yaml"},
    Examples{"run",
             "  millrace run ORG/NAME:Q4_K_M\n"
             "  millrace run model.gguf 'Why is the sky blue?'\n"
             "  git diff | millrace run ~/models/Qwen3-0.6B 'Write a commit message for this.'\n"
             "  millrace run --url http://10.0.0.1:30000"},
    Examples{"pull", "  millrace pull ORG/NAME\n  millrace pull ORG/NAME:Q4_K_M"},
    Examples{"list", "  millrace list\n  millrace list --json"},
    Examples{"show", "  millrace show ORG/NAME:Q8_0 --context-length 32768\n  millrace show model.gguf"},
    Examples{"rm", "  millrace rm ORG/NAME\n  millrace rm ORG/NAME:Q8_0"},
    Examples{"stage", "  millrace stage --join 10.0.0.1:30010 --pipeline two-hosts.yaml --stages think"},
    Examples{"chat",
             "  millrace chat\n"
             "  millrace chat --url http://10.0.0.1:30000 --system 'You are brief.' --temperature 0\n"
             "  echo 'Write a story.' | millrace chat"},
    Examples{"launch",
             "  millrace launch claude\n"
             "  millrace launch codex --url http://10.0.0.1:30000 -- exec 'Explain this folder.'\n"
             "  millrace launch opencode --print"},
    Examples{"top", "  millrace top\n  millrace top --url http://10.0.0.1:30000 --once"},
    Examples{"pipeline", "  millrace pipeline check my.yaml\n  millrace pipeline draw my.yaml --output my.svg"},
    Examples{"inspect",
             "  millrace inspect model.gguf --tensors\n"
             "  millrace inspect ~/models/Qwen3-0.6B --pp 4 --split balanced\n"
             "  millrace inspect --relays"},
    Examples{"bench",
             "  millrace bench serve --url http://127.0.0.1:30000 --clients 16 --requests 256\n"
             "  millrace bench offline model.gguf --batch 1 4 16"},
    Examples{"bench serve", "  millrace bench serve --clients 16 --requests 256 --prompt-tokens 64 --tokens 64"},
    Examples{"bench offline", "  millrace bench offline model.gguf --batch 1 4 16 --threads 8"},
    Examples{"quantize", "  millrace quantize ~/models/Qwen3-0.6B model.gguf --type q8_0"},
    Examples{"split", "  millrace split ~/models/Qwen3-0.6B --pp 2 --out shards"},
};

// "--kv-gib" is a number; others are called by the last word of their name: "--api-key KEY".
std::string value_name(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (!type.starts_with("TEXT") || option.get_lnames().empty()) return "N";
  const std::string& name = option.get_lnames().front();
  if (name == "config") return "FILE";
  if (name.ends_with("-endpoint")) return "URL";
  std::string out = name.substr(name.rfind('-') + 1);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

// Of the validators' text: "INT:INT in [0 - 256]" is "0 to 256", "TEXT:{on,off}" is "on, off".
std::string allowed_values(const std::string& type) {
  if (const std::size_t begin = type.find(" in ["); begin != std::string::npos) {
    const std::string range = type.substr(begin + 5, type.rfind(']') - begin - 5);
    return CLI::detail::find_and_replace(range, " - ", " to ");
  }
  const std::size_t begin = type.find('{');
  if (begin == std::string::npos) return "";
  return CLI::detail::find_and_replace(type.substr(begin + 1, type.rfind('}') - begin - 1), ",", ", ");
}

std::string names_of(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  names.reserve(options.size());
  for (const CLI::Option* option : options) names.push_back(option->get_name());
  std::sort(names.begin(), names.end());
  return CLI::detail::join(names, ", ");
}

class HelpFormatter : public CLI::Formatter {
 public:
  // CLI11 has "--no-web{false}" for the flags that set false.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return CLI::detail::find_and_replace(CLI::Formatter::make_option_name(option, is_positional), "{false}", "");
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_expected_max() == 0) return "";  // a flag
    std::string out;
    if (option->nonpositional()) out += " " + value_name(*option);
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) out += " ...";
    std::string values = allowed_values(option->get_type_name());
    if (!option->get_default_str().empty())
      values += (values.empty() ? "default " : ", default ") + default_of(*option);
    if (option->get_required() && option->nonpositional()) values += values.empty() ? "required" : ", required";
    return values.empty() ? out : out + " (" + values + ")";
  }

  // CLI11 does not break long descriptions; it indents what follows a line break.
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    if (!option->get_needs().empty()) text += " (with " + names_of(option->get_needs()) + ")";
    if (!option->get_excludes().empty()) text += " (not with " + names_of(option->get_excludes()) + ")";
    const std::size_t width = kHelpWidth - get_column_width();
    for (std::size_t begin = 0; text.size() - begin > width;) {
      const std::size_t space = text.rfind(' ', begin + width);
      if (space == std::string::npos || space <= begin) break;
      text[space] = '\n';
      begin = space + 1;
    }
    return text;
  }

  // Whether a command is needed stands in the usage.
  std::string make_description(const CLI::App* app) const override { return app->get_description() + "\n"; }

 private:
  // Lists are "[a,b]", and empty ones are left out.
  static std::string default_of(const CLI::Option& option) {
    const std::string text = option.get_default_str();
    return text.starts_with('[') ? text.substr(1, text.size() - 2) : text;
  }
};

void add_examples_of(CLI::App& command, const std::string& name) {
  command.footer("");  // not the program's
  for (const Examples& each : kExamples) {
    if (each.command == name) command.footer("Examples:\n" + std::string(each.text));
  }
  for (CLI::App* inner : command.get_subcommands({})) add_examples_of(*inner, name + " " + inner->get_name());
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

void add_examples(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) add_examples_of(*command, command->get_name());
}

}  // namespace millrace
