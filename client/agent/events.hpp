// SPDX-License-Identifier: Apache-2.0
// The events that wake the agent's main loop, and the queue in which they wait for it.
#pragma once

#include "proto/wire.pb.h"
#include "shared/base/async/mailbox.hpp"
#include "shared/base/error.hpp"
#include "shared/wire/message.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

namespace fl::client {

/// The worker has finished a job.
struct JobDone {
  std::int64_t task = 0;  // 0: the job was not a training.
  Result<void> result = success();
  std::optional<wire::Evaluation> evaluation;  // The job evaluated a version.
};

/// A message, or the error that ended a connection.
struct Arrival {
  std::uint64_t connection = 0;  // Conversation::number() of that connection.
  Result<Message> message;
};

using AgentEvent = std::variant<JobDone, Arrival>;
using AgentEvents = Mailbox<AgentEvent>;

/// The capacity of the queue. It is small, because each event may hold a chunk.
inline constexpr std::size_t agent_events_max = 2;

}  // namespace fl::client
