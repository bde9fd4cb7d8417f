// SPDX-License-Identifier: Apache-2.0
// The server's half of the end of a masked round: collects what the members reveal, and takes the
// masks off their sum. It learns the sum of the survivors' words, and nothing else. Pure; one
// thread at a time.
#pragma once

#include "shared/secure/cohort.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fl::server {

class Unlocking {
 public:
  /// `sharers` have shared their secrets; the words of `survivors` count. The cohort has passed
  /// check_cohort(), the lists check_survivors().
  Unlocking(secure::Cohort cohort, std::vector<std::uint32_t> sharers,
            std::vector<std::uint32_t> survivors);

  /// Takes the answer of a survivor; the same once more changes nothing. Errors: invalid_input,
  /// naming the member: it is no survivor, its self seed is not the one that it has announced, or
  /// it reveals other shares than it may. Shares may be missing.
  [[nodiscard]] Result<void> take(std::uint32_t member, const secure::Reveal& reveal);

  [[nodiscard]] bool has_answer_of(std::uint32_t member) const { return reveals_.contains(member); }
  /// How many more answers the sum needs.
  [[nodiscard]] std::size_t lacks() const { return needed_ - std::min(needed_, reveals_.size()); }
  /// The survivors that the server still waits for; empty if the answers are enough to open the
  /// sum.
  [[nodiscard]] std::vector<std::uint32_t> missing() const;
  /// The sum could not be opened: it needs one answer more. Returns false if all survivors have
  /// answered.
  [[nodiscard]] bool want_more();

  /// The keys of the masks on the sum of the survivors' words, and how each goes off. Requires:
  /// lacks() is 0. Errors: corrupt, naming a member whose secret can't be put together because too
  /// few of its shares are there, or more are wrong than the others make up for.
  using Removal = std::pair<secure::Secret, secure::MaskStream::Way>;
  [[nodiscard]] Result<std::vector<Removal>> removals();
  /// The members that have revealed a wrong share, as far as removals() has found out.
  [[nodiscard]] const std::vector<std::uint32_t>& liars() const { return liars_; }

 private:
  [[nodiscard]] bool is_survivor(std::uint32_t member) const;
  [[nodiscard]] std::string name_of(std::uint32_t member) const {
    return cohort_.members[member].name;
  }
  [[nodiscard]] std::vector<secure::Share> shares_about(std::uint32_t member) const;
  void note_liar(std::uint32_t member);
  template <class IsRight>
  Result<secure::Secret> put_together(std::uint32_t member, const IsRight& is_right);
  [[nodiscard]] Result<secure::Secret> self_seed_of(std::uint32_t member);
  [[nodiscard]] Result<secure::Secret> mask_key_of(std::uint32_t member);

  secure::Cohort cohort_;
  std::vector<std::uint32_t> sharers_;
  std::vector<std::uint32_t> survivors_;
  secure::Public transcript_;
  std::size_t needed_;                               // Answers: at first as many as the threshold.
  std::map<std::uint32_t, secure::Reveal> reveals_;  // By the survivor that has answered.
  std::vector<std::uint32_t> liars_;
};

}  // namespace fl::server
