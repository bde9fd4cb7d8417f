// What the programs' flags have in common beyond CLI11: a TOML file of flags (CLI11's own reader
// takes a dialect of INI for it), and plain words about numbers.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace fl {

/// Adds --config FILE: `key = value` for any flag of the app, `true` or `false` for one without a
/// value. What stands on the command line counts more. The app must outlive its parsing. Mistakes
/// in the file are CLI::ParseErrors that name file and line.
void add_config_flag(CLI::App& app, const std::string& help);

/// How a program ends that was called wrongly.
inline constexpr int wrong_usage = 2;
/// Prints what there is to say of a failed parse, --help and --version too, for which it is 0.
[[nodiscard]] int exit_code(const CLI::App& app, const CLI::ParseError& error);

/// For Option::check.
[[nodiscard]] CLI::Validator number_from(double least);
[[nodiscard]] CLI::Validator not_empty();

}  // namespace fl
