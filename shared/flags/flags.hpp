// SPDX-License-Identifier: Apache-2.0
// What the command lines of all programs share on top of CLI11: a TOML file with flags (CLI11's own
// reader accepts a dialect of INI), the exit code, and checks of values.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace fl {

/// Adds --config FILE, a TOML file with a line `flag = value` for any flag of the app; a flag
/// without a value takes `true` or `false`. A flag on the command line overrides the file. `app`
/// must live until it has parsed. A mistake in the file is a CLI::ParseError that names file and
/// line.
void add_config_flag(CLI::App& app, const std::string& help);

/// Adds --accept-fixed-modes, which takes effect when it is read (state_lock.hpp).
void add_fixed_modes_flag(CLI::App& app);

/// The text of a failed parse, with file and line if the mistake is in the file.
[[nodiscard]] std::string error_text(const CLI::App& app, const CLI::ParseError& error);

/// Exit code for a wrong command line.
inline constexpr int wrong_usage = 2;
/// Prints the text of a failed parse and returns the exit code. CLI11 also reports --help and
/// --version this way; for these the code is 0.
[[nodiscard]] int exit_code(const CLI::App& app, const CLI::ParseError& error);

/// Checks for CLI::Option::check: a whole number in this range, in decimal; a finite number in this
/// range; a text that is not empty. Every flag with a number has one of them. CLI11 itself reads
/// "-1" into an unsigned number as 2^64 - 1, clamps what is too large, and takes "010" for 8, and
/// "nan" and "1e999" for numbers. `..._in` show their range in --help.
[[nodiscard]] CLI::Validator whole_number(std::uint64_t least, std::uint64_t most);
[[nodiscard]] CLI::Validator whole_number_in(std::uint64_t least, std::uint64_t most);
[[nodiscard]] CLI::Validator real_number();
[[nodiscard]] CLI::Validator real_number_in(double least, double most);
[[nodiscard]] CLI::Validator not_empty();
/// A check that the value is one of these words, which --help shows. The error names the word that
/// a mistyped one is nearest to.
[[nodiscard]] CLI::Validator one_of(std::vector<std::string> words);

}  // namespace fl
