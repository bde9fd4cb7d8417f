// SPDX-License-Identifier: Apache-2.0
// Whether an update is so much larger than the others that it must not count (--norm-limit): its
// client's training has diverged, its data are broken, or it is malicious. The sums could hold any
// update; this is a matter of policy.
//
// An update is compared with those of at least two other clients: of its round, and of clients that
// have none in it the last one before. So a client can't make its own norm the usual one. An update
// that looks too large waits until the round closes, and is then judged by the updates of its
// round, not by those that happened to come first. The first two updates of a run have nothing to
// be compared with, and count.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

/// With fewer norms, its own among them, nothing is known about whether an update is too large.
inline constexpr std::size_t norms_to_judge_min = 3;

enum class NormVerdict { fits, waits, too_large };

struct JudgedNorm {
  NormVerdict verdict;
  double median;  // The median of the norms that it was compared with; 0: there were too few.
};

/// Norms in ascending order. None is NaN.
class SortedNorms {
 public:
  explicit SortedNorms(std::vector<double> norms = {});
  void add(double norm);
  /// Removes a norm that was added.
  void remove(double norm);
  [[nodiscard]] std::size_t count() const { return norms_.size(); }
  /// The median: with an even number of norms, the larger middle one. 0: there are too few to
  /// judge.
  [[nodiscard]] double median() const;

 private:
  std::vector<double> norms_;
};

/// The norms of a round's updates, and of the clients' updates before. They are kept in order, so a
/// judgement takes the same time with any number of clients. On the engine's strand.
class RoundNorms {
 public:
  /// `past`: by client, the norm of its last update that was accepted, or refused for its norm. It
  /// must outlive this object, which alone changes it meanwhile. `limit`: the largest allowed ratio
  /// to the median.
  RoundNorms(std::map<std::string, double>& past, double limit);

  /// A client's update has arrived in the round. It replaces the client's past one.
  void add(const std::string& client, double norm);
  /// The client's update, which has arrived, was refused for its norm. That is now its past norm.
  void refuse(const std::string& client);

  /// Judges an update that has arrived, while the round takes more of them. One that is too large
  /// waits. If the median is 0 all norms fit.
  [[nodiscard]] JudgedNorm judge(double norm) const;
  /// Judges an update at the end of a round, when it either fits or is too large. It is compared
  /// with the round's updates alone, if they are enough. If there are too few in all, it fits. The
  /// first call fixes what is compared with until reopen(): so it does not matter who is judged
  /// first.
  [[nodiscard]] JudgedNorm judge_at_end(double norm);
  [[nodiscard]] bool is_fixed() const { return median_at_end_.has_value(); }
  /// The round takes updates again.
  void reopen() { median_at_end_.reset(); }

 private:
  [[nodiscard]] bool fits(double norm, double median) const;

  std::map<std::string, double>* past_;
  double limit_;
  std::map<std::string, double> cohort_;  // The norms of this round's updates, by client.
  SortedNorms of_cohort_;
  SortedNorms of_all_;  // The norms of this round, and past norms of clients without one in it.
  std::optional<double> median_at_end_;
};

}  // namespace fl::server
