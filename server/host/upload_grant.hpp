// SPDX-License-Identifier: Apache-2.0
// UploadGrant: a session and its host hand it to each other while an update comes in.
#pragma once

#include "server/host/upload.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"
#include "shared/wire/message.hpp"

#include <cstdint>
#include <memory>
#include <string_view>

namespace fl::server {

/// Either an upload to write chunks to, or a verdict at once.
struct UploadGrant {
  std::shared_ptr<Upload> upload;  // Null: `verdict` is the answer.
  std::size_t chunk_bytes_max = 0;
  double bytes_per_s_min = 0;  // An upload slower than this is given up.
  wire::Verdict verdict;
  wire::UploadBegin begin;  // The announcement as the client sent it.
  TimePoint began_at{};
  std::uint64_t offset = 0;  // Bytes of the update that were here at began_at.
};

[[nodiscard]] inline wire::Verdict verdict_for(const wire::UploadBegin& begin,
                                               wire::Verdict::Outcome outcome,
                                               std::string_view reason) {
  wire::Verdict verdict;
  verdict.set_task(begin.task());
  verdict.set_outcome(outcome);
  verdict.set_reason(printable(reason, limits::reason_bytes_max));
  return verdict;
}

/// A grant without an upload: the verdict is the answer.
[[nodiscard]] inline UploadGrant answer_at_once(const wire::UploadBegin& begin,
                                                wire::Verdict::Outcome outcome,
                                                std::string_view reason) {
  UploadGrant grant;
  grant.verdict = verdict_for(begin, outcome, reason);
  return grant;
}

}  // namespace fl::server
