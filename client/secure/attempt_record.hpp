// SPDX-License-Identifier: Apache-2.0
// The files of a member of masked rounds: its present attempt, and the versions that it has
// contributed to. Both are durable when the functions that write them return. Blocking; one thread
// at a time.
#pragma once

#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/secure/secret.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace fl::client {

/// An attempt, as far as it has come. All that the member says in it follows from this.
struct AttemptRecord {
  secure::Secret seed;       // All its keys come from it.
  secure::Public weights{};  // secure::ValuesDigest of the version that it was trained from,
  secure::Public terms{};    // and secure::RunTerms::digest() of the run that it was trained for.
  wire::Offer offer;         // With the terms of this attempt.
  double loss = 0;           // The training loss, which goes under the mask.
  // Set once they have come.
  std::optional<wire::SecureCohort> cohort;
  std::optional<wire::SecureInbox> inbox;
  std::optional<wire::SecureSurvivors> survivors;  // The list that this member signs.
  std::optional<wire::SecureAsk> ask;              // The reveal answers it.

  [[nodiscard]] std::int64_t task() const { return offer.task(); }
  [[nodiscard]] std::uint32_t attempt() const { return offer.secure().attempt(); }
};

/// The file FOLDER/attempt.json, which only this user may read.
class AttemptFile {
 public:
  AttemptFile(Files& files, const std::filesystem::path& folder);
  /// Errors: corrupt, naming the file; those of the disk.
  [[nodiscard]] Result<void> load();
  [[nodiscard]] const std::optional<AttemptRecord>& record() const { return record_; }
  /// Replaces the record; after an error it is as before.
  [[nodiscard]] Result<void> write(AttemptRecord record);
  /// Removes the record with its secrets. One that is not there is no error.
  [[nodiscard]] Result<void> remove();

 private:
  Files& files_;
  const std::filesystem::path path_;
  std::optional<AttemptRecord> record_;
};

/// One time that this site has signed whose updates count.
struct Contribution {
  secure::Public weights;     // The version's, as in AttemptRecord.
  secure::Public transcript;  // The attempt's.
  std::string run_key;
  std::int64_t task = 0;
};

/// All versions that this site has contributed to, over all runs: FOLDER/contributions, a line for
/// each. Training repeats itself, so two sums of one version that differ by a member would show
/// that member's update, whatever masks they had.
class Contributions {
 public:
  Contributions(Files& files, const std::filesystem::path& folder);
  /// Errors: corrupt, naming file and line; too_large; those of the disk.
  [[nodiscard]] Result<void> load();
  /// Whether this site may contribute to a version: it has not done so before. Errors:
  /// invalid_input.
  [[nodiscard]] Result<void> check(const secure::Public& weights) const;
  /// Adds one, unless it is there. Errors: invalid_input, if there are limits::contributions_max.
  [[nodiscard]] Result<void> add(const Contribution& contribution);

 private:
  [[nodiscard]] bool read_line(std::string_view line);

  Files& files_;
  const std::filesystem::path folder_;
  const std::filesystem::path path_;
  std::map<secure::Public, std::set<secure::Public>> transcripts_;  // By the version's weights.
  std::size_t count_ = 0;
  std::uint64_t end_ = 0;  // Bytes of whole lines. A write that was cut off ends behind them.
};

}  // namespace fl::client
