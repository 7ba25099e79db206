// The help texts of the commands: options as "--threads N (0 to 256, default 0)", lines that fit a terminal, examples.
// Thread safety: one thread, at the start.
#pragma once

#include <memory>

namespace CLI {
class App;
class FormatterBase;
}  // namespace CLI

namespace millrace {

// For the program; its commands take it over.
std::shared_ptr<CLI::FormatterBase> help_formatter();

// Of every command that is not hidden: the examples below its help. After the commands have been added.
void add_examples(CLI::App& app);

}  // namespace millrace
