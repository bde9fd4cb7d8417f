// SPDX-License-Identifier: Apache-2.0
// Reads a job step's place from Slurm's variables: its first node, how many tasks run on this node,
// and a port for the step. Pure functions; any thread.
#pragma once

#include "shared/base/environment.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fl::site {

/// The first name of a list of nodes: "node01" of "node[01-04,7],other3"; "" if there is none.
[[nodiscard]] std::string first_node(std::string_view nodes);

/// The tasks of node `number`, from 0, by a list such as "2(x3),1"; none if the list is another
/// thing, or shorter.
[[nodiscard]] std::optional<int> tasks_of_node(std::string_view tasks_per_node, int number);

/// How many tasks of the step run on this node. Errors: invalid_input, with the variable that is
/// missing or wrong.
[[nodiscard]] Result<int> slurm_local_size(const Environment& environment);

/// The step's first node, where Slurm puts task 0; none if no variable names it.
[[nodiscard]] std::optional<std::string> slurm_first_node(const Environment& environment);

/// A port that follows from the numbers of the job and of the step, so that those which share a
/// node seldom meet. It is below the ports that Linux gives to connections. None outside of a job.
[[nodiscard]] std::optional<std::uint16_t> slurm_port(const Environment& environment);

}  // namespace fl::site
