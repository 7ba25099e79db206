// Numbers of options are decimal. CLI11 reads 0x10 as 16 and 010 as 8, which is not what a number of tokens or a port
// means. Thread safety: one thread, at the start.
#pragma once

namespace CLI {
class App;
}

namespace millrace {

// Of all options that are numbers, of all commands. After they have their options.
void want_decimal_numbers(CLI::App& app);

}  // namespace millrace
