// SPDX-License-Identifier: Apache-2.0
// Which column of the database each field of a record is. The schema (schema.cpp) has the types and
// the constraints; a new column is a migration there, a field in records.hpp, and a line here.
// Other columns are written by functions that name them. They have no line here, unless a record
// shows them (read_only):
// - round.ended_at, train_loss, bytes_up and bytes_down: Rounds::commit;
// - task.bytes_up, bytes_down and cosine: Rounds::commit, which also raises task.seconds;
// - task.round and offered_at: Rounds::open and add_tasks; open() moves the tasks that go on;
// - task.decided_at: Rounds::decide, and of late tasks, with their state, Rounds::commit,
//   Runs::set_state and Archive::forget_checkpoint;
// - checkpoint.made_at and dropped_at.
#pragma once

#include "server/history/columns.hpp"
#include "server/history/records.hpp"

namespace fl::server {

inline constexpr Column<RunRecord> run_columns[] = {
    column<&RunRecord::id>("id", read_only),
    column<&RunRecord::key>("key"),
    column<&RunRecord::model>("model"),
    column<&RunRecord::seed, AsDecimal>("seed"),
    column<&RunRecord::rounds_total>("rounds_total"),
    column<&RunRecord::config_json>("config_json"),
    column<&RunRecord::state>("state"),
    column<&RunRecord::started_at>("started_at"),
    column<&RunRecord::queued>("queued"),
    column<&RunRecord::checkpoints>("checkpoints", read_only),  // Made from the id.
    column<&RunRecord::early_end>("early_end", read_only),
    column<&RunRecord::aside_at, OrNull>("aside_at", read_only),
};
inline constexpr Table<RunRecord> run_table{"run", run_columns};

inline constexpr Column<RoundRecord> round_columns[] = {
    column<&RoundRecord::round>("round"),
    column<&RoundRecord::base_version>("base_version"),
    column<&RoundRecord::started_at>("started_at"),
    column<&RoundRecord::target>("target"),
    column<&RoundRecord::population>("population"),
    column<&RoundRecord::examples_max>("examples_max"),
};
inline constexpr Table<RoundRecord> round_table{"round", round_columns};

inline constexpr Column<TaskRecord> task_columns[] = {
    column<&TaskRecord::id>("id", read_only),
    column<&TaskRecord::round>("round", read_only),  // The round that it is inserted into.
    column<&TaskRecord::base_version>("base_version"),
    column<&TaskRecord::client>("client"),
    column<&TaskRecord::state>("state", on_insert | on_verdict),
    column<&TaskRecord::examples>("examples", on_insert | on_verdict),
    column<&TaskRecord::steps>("steps", on_insert | on_verdict),
    column<&TaskRecord::loss>("loss", on_insert | on_verdict),
    column<&TaskRecord::predictions>("predictions", on_insert | on_verdict),
    column<&TaskRecord::norm>("norm", on_insert | on_verdict),
    column<&TaskRecord::cosine>("cosine", read_only),  // Known when the round is recorded.
    column<&TaskRecord::train_seconds>("train_seconds", on_insert | on_verdict),
    column<&TaskRecord::codec>("codec", on_insert | on_verdict),
    column<&TaskRecord::codec_reason>("codec_reason"),
    column<&TaskRecord::update_bytes>("update_bytes", on_insert | on_verdict),
    column<&TaskRecord::update_digest, OrNull>("update_digest", on_insert | on_verdict),
    column<&TaskRecord::spool_file>("spool_file", on_insert | on_verdict),
    column<&TaskRecord::reason>("reason", on_insert | on_verdict),
    column<&TaskRecord::reference>("reference", on_insert | on_verdict),
    column<&TaskRecord::raw_bytes>("raw_bytes", on_verdict),
    column<&TaskRecord::encode_seconds>("encode_seconds", on_verdict),
    column<&TaskRecord::save_seconds>("save_seconds", on_verdict),
    column<&TaskRecord::residual_seconds>("residual_seconds", on_verdict),
    column<&TaskRecord::digest_seconds>("digest_seconds", on_verdict),
    column<&TaskRecord::sync_seconds>("sync_seconds", on_verdict),
    column<&TaskRecord::decode_seconds>("decode_seconds", on_verdict),
    column<&TaskRecord::nmse>("nmse", on_verdict),
    column<&TaskRecord::ready_seconds>("ready_seconds", on_verdict),
    column<&TaskRecord::upload_seconds>("upload_seconds", on_verdict),
    column<&TaskRecord::seconds>("seconds", on_verdict),
    column<&TaskRecord::ranks>("ranks", on_verdict),
    column<&TaskRecord::compute_seconds>("compute_seconds", on_verdict),
    column<&TaskRecord::exposed_seconds>("exposed_seconds", on_verdict),
    column<&TaskRecord::hidden_seconds>("hidden_seconds", on_verdict),
    column<&TaskRecord::coding_seconds>("coding_seconds", on_verdict),
    column<&TaskRecord::fp32_steps>("fp32_steps", on_verdict),
    column<&TaskRecord::setup>("setup", on_verdict),
};
inline constexpr Table<TaskRecord> task_table{"task", task_columns};

inline constexpr Column<CheckpointRecord> checkpoint_columns[] = {
    column<&CheckpointRecord::version>("version"),
    column<&CheckpointRecord::file>("file"),
    column<&CheckpointRecord::bytes>("bytes"),
    column<&CheckpointRecord::digest>("digest"),
    column<&CheckpointRecord::delta_file>("delta_file"),
    column<&CheckpointRecord::delta_bytes>("delta_bytes"),
    column<&CheckpointRecord::lane_steps, AsBase64>("lane_steps"),
};
inline constexpr Table<CheckpointRecord> checkpoint_table{"checkpoint", checkpoint_columns};

inline constexpr Column<MaskedMessage> masked_message_columns[] = {
    column<&MaskedMessage::attempt>("attempt"),
    column<&MaskedMessage::client>("client"),
    column<&MaskedMessage::task>("task"),
    column<&MaskedMessage::kind>("kind"),
    column<&MaskedMessage::message, AsBase64>("message"),
};
inline constexpr Table<MaskedMessage> masked_message_table{"masked_message",
                                                           masked_message_columns};

inline constexpr Column<ClientRecord> client_columns[] = {
    column<&ClientRecord::name>("name"),
    column<&ClientRecord::certificate_serial>("certificate_serial"),
    column<&ClientRecord::enrolled_at>("enrolled_at"),
    column<&ClientRecord::last_seen_at, OrNull>("last_seen_at"),
    column<&ClientRecord::revoked_at, OrNull>("revoked_at"),
    column<&ClientRecord::evaluator>("evaluator"),
    column<&ClientRecord::examples_max>("examples_max"),
    column<&ClientRecord::pardoned_at, OrNull>("pardoned_at"),
    column<&ClientRecord::model>("model"),
    column<&ClientRecord::tensors>("tensors"),
};
inline constexpr Table<ClientRecord> client_table{"client", client_columns};

inline constexpr Column<TokenRecord> token_columns[] = {
    column<&TokenRecord::id>("id"),
    column<&TokenRecord::name>("client"),
    column<&TokenRecord::secret_hash>("secret_hash"),
    column<&TokenRecord::expires_at>("expires_at"),
    column<&TokenRecord::used_at, OrNull>("used_at"),
    column<&TokenRecord::key_digest>("key_digest", read_only),  // Known when it is used.
    column<&TokenRecord::evaluator>("evaluator"),
    column<&TokenRecord::examples_max>("examples_max"),
};
inline constexpr Table<TokenRecord> token_table{"token", token_columns};

inline constexpr Column<EventRecord> event_columns[] = {
    column<&EventRecord::run, OrNull>("run_id"),
    column<&EventRecord::at>("at"),
    column<&EventRecord::level>("level"),
    column<&EventRecord::text>("text"),
};
inline constexpr Table<EventRecord> event_table{"event", event_columns};

inline constexpr Column<AuditRecord> audit_columns[] = {
    column<&AuditRecord::at>("at"),         column<&AuditRecord::kind>("kind"),
    column<&AuditRecord::client>("client"), column<&AuditRecord::text>("text"),
    column<&AuditRecord::who>("who"),
};
inline constexpr Table<AuditRecord> audit_table{"audit", audit_columns};

inline constexpr Column<OperatorRecord> operator_columns[] = {
    column<&OperatorRecord::name>("name"),
    column<&OperatorRecord::role>("role"),
    column<&OperatorRecord::token_hash>("token_hash"),
    column<&OperatorRecord::made_at>("made_at"),
    column<&OperatorRecord::revoked_at, OrNull>("revoked_at"),
};
inline constexpr Table<OperatorRecord> operator_table{"operator", operator_columns};

// Views, and what is read of a table only. --------------------------------------------------------

inline constexpr Column<RoundSummary> round_summary_columns[] = {
    column<&RoundSummary::run>("run_id"),
    column<&RoundSummary::round>("round"),
    column<&RoundSummary::started_at>("started_at"),
    column<&RoundSummary::seconds>("seconds"),
    column<&RoundSummary::clients_offered>("clients_offered"),
    column<&RoundSummary::clients_accepted>("clients_accepted"),
    column<&RoundSummary::bytes_up>("bytes_up"),
    column<&RoundSummary::bytes_down>("bytes_down"),
    column<&RoundSummary::train_loss>("train_loss"),
    column<&RoundSummary::eval_loss>("eval_loss"),
    column<&RoundSummary::eval_accuracy>("eval_accuracy"),
    column<&RoundSummary::model_digest>("model_digest"),
    column<&RoundSummary::own_accuracy>(
        "(SELECT value FROM evaluation AS e WHERE e.run_id = s.run_id AND e.version = s.round"
        " AND e.name = 'own_accuracy')"),
};
/// The rounds of a page, without what evaluators have measured: Summaries::add_evaluations() reads
/// that for all rounds at once, as the view would look for it in each of them again.
inline constexpr Column<RoundSummary> round_page_columns[] = {
    column<&RoundSummary::run>("r.run_id"),
    column<&RoundSummary::round>("r.round"),
    column<&RoundSummary::started_at>("r.started_at"),
    column<&RoundSummary::seconds>("r.ended_at - r.started_at"),
    column<&RoundSummary::clients_offered>(
        "(SELECT count(*) FROM task AS t WHERE t.run_id = r.run_id AND t.round = r.round)"),
    column<&RoundSummary::clients_accepted>(
        "(SELECT count(*) FROM task AS t WHERE t.run_id = r.run_id AND t.round = r.round"
        " AND t.state = 'accepted')"),
    column<&RoundSummary::bytes_up>("r.bytes_up"),
    column<&RoundSummary::bytes_down>("r.bytes_down"),
    column<&RoundSummary::train_loss>("r.train_loss"),
    column<&RoundSummary::model_digest>("c.digest"),
};
inline constexpr Table<RoundSummary> round_page{
    "round AS r JOIN checkpoint AS c ON c.run_id = r.run_id AND c.version = r.round",
    round_page_columns};
inline constexpr Table<RoundSummary> round_summary_view{"round_summary AS s",
                                                        round_summary_columns};

inline constexpr Column<MetricSummary> metric_summary_columns[] = {
    column<&MetricSummary::run>("run_id"),
    column<&MetricSummary::version>("version"),
    column<&MetricSummary::name>("name"),
    column<&MetricSummary::value>("value"),
    column<&MetricSummary::is_exact>("is_exact"),
    column<&MetricSummary::clients>("clients"),
    column<&MetricSummary::examples>("examples"),
    column<&MetricSummary::by_evaluators>("evaluator"),
};
inline constexpr Table<MetricSummary> metric_summary_view{"evaluation", metric_summary_columns};

inline constexpr Column<CodecSummary> codec_summary_columns[] = {
    column<&CodecSummary::run>("run_id"),
    column<&CodecSummary::codec>("codec"),
    column<&CodecSummary::updates>("updates"),
    column<&CodecSummary::raw_bytes>("raw_bytes"),
    column<&CodecSummary::update_bytes>("update_bytes"),
    column<&CodecSummary::encode_seconds>("encode_seconds"),
    column<&CodecSummary::save_seconds>("save_seconds"),
    column<&CodecSummary::residual_seconds>("residual_seconds"),
    column<&CodecSummary::digest_seconds>("digest_seconds"),
    column<&CodecSummary::sync_seconds>("sync_seconds"),
    column<&CodecSummary::decode_seconds>("decode_seconds"),
    column<&CodecSummary::train_seconds>("train_seconds"),
    column<&CodecSummary::nmse>("nmse"),
    column<&CodecSummary::bytes>("bytes"),
    column<&CodecSummary::accuracy_first>("accuracy_first"),
    column<&CodecSummary::accuracy_last>("accuracy_last"),
    column<&CodecSummary::metric>("metric"),
    column<&CodecSummary::value_first>("value_first"),
    column<&CodecSummary::value_last>("value_last"),
};
inline constexpr Table<CodecSummary> codec_summary_view{"codec_summary", codec_summary_columns};

inline constexpr Column<CodecAsked> codec_asked_columns[] = {
    column<&CodecAsked::run>("run_id"),
    column<&CodecAsked::round>("round"),
    column<&CodecAsked::client>("client"),
    column<&CodecAsked::codec>("codec"),
    column<&CodecAsked::reason>("codec_reason"),
    column<&CodecAsked::state>("state"),
    column<&CodecAsked::update_bytes>("update_bytes"),
    column<&CodecAsked::ready_seconds>("ready_seconds"),
    column<&CodecAsked::upload_seconds>("upload_seconds"),
};
inline constexpr Table<CodecAsked> codec_asked_table{"task", codec_asked_columns};

}  // namespace fl::server
