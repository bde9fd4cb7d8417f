// SPDX-License-Identifier: Apache-2.0
#include "server/history/summaries.hpp"

#include "server/history/sqlite.hpp"
#include "server/history/tables.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace fl::server {

Result<std::vector<RoundSummary>> Summaries::rounds(std::optional<RunId> run) {
  FL_TRY(
      auto rounds,
      db_.query(round_summary_view.select("WHERE ?1 IS NULL OR run_id = ?1 ORDER BY run_id, round"),
                round_summary_view.reader(), run));
  FL_CHECK(add_evaluations(rounds, 0));
  return rounds;
}

Result<std::vector<MetricSummary>> Summaries::metrics(std::optional<RunId> run) {
  return db_.query(
      metric_summary_view.select("WHERE ?1 IS NULL OR run_id = ?1 ORDER BY run_id, version, name"),
      metric_summary_view.reader(), run);
}

Result<std::vector<CodecSummary>> Summaries::codecs(std::optional<RunId> run) {
  return db_.query(
      codec_summary_view.select("WHERE ?1 IS NULL OR run_id = ?1 ORDER BY run_id, codec"),
      codec_summary_view.reader(), run);
}

Result<std::vector<CodecAsked>> Summaries::codecs_asked(std::optional<RunId> run) {
  return db_.query(codec_asked_table.select(
                       "WHERE codec_reason <> '' AND (?1 IS NULL OR run_id = ?1) ORDER BY id"),
                   codec_asked_table.reader(), run);
}

Result<void> Summaries::add_evaluations(std::vector<RoundSummary>& rounds,
                                        std::uint32_t clients_min) {
  if (rounds.empty()) return {};
  std::map<RunId, std::string> names;
  const auto note_name = [&](const Row& row) {
    names[row.integer(0)] = row.text(1);
    return true;
  };
  const RunId first = rounds.front().run;
  const RunId last = rounds.back().run;
  FL_CHECK(db_.query("SELECT run_id, name FROM run_metric WHERE run_id BETWEEN ?1 AND ?2",
                     note_name, first, last));
  std::map<std::pair<RunId, Round>, RoundSummary*> by_number;
  Round least = rounds.front().round;
  Round most = least;
  for (RoundSummary& round : rounds) {
    round.metric = names[round.run];
    by_number[{round.run, round.round}] = &round;
    least = std::min(least, round.round);
    most = std::max(most, round.round);
  }
  const auto note_figure = [&](const Row& row) {
    const auto found = by_number.find({row.integer(0), static_cast<Round>(row.integer(1))});
    if (found == by_number.end()) return true;
    RoundSummary& round = *found->second;
    const std::string name = row.text(2);
    // Rows of rounds() have these three already.
    if (name == loss_name) round.eval_loss = row.optional_real(3);
    if (name == "accuracy") round.eval_accuracy = row.optional_real(3);
    if (name == "own_accuracy") round.own_accuracy = row.optional_real(3);
    if (name == round.metric) {
      round.eval_metric = row.optional_real(3);
      round.is_exact = row.integer(4) != 0;
    } else if (name == std::string(own_prefix) + round.metric) {
      round.own_metric = row.optional_real(3);
    }
    return true;
  };
  FL_CHECK(
      db_.query("SELECT run_id, version, name, value, is_exact FROM evaluation"
                " WHERE run_id BETWEEN ?1 AND ?2 AND version BETWEEN ?3 AND ?4"
                " AND (evaluator = 1 OR clients >= ?5)",
                note_figure, first, last, least, most, clients_min));
  return {};
}

}  // namespace fl::server
