// SPDX-License-Identifier: Apache-2.0
// The limits of the queues, messages, waits and retries that another end can reach, and the
// defaults of those that a flag sets. A name with `bytes` is in bytes; times have their unit in the
// value, and plain numbers in their name.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace fl::limits {

using namespace std::chrono_literals;

// Messages.
inline constexpr std::size_t header_bytes_max = 256 << 10;  // A protobuf header.
inline constexpr std::size_t chunk_bytes_max = 1 << 20;     // Payload bytes of one message.
inline constexpr std::size_t chunk_bytes_min = 64 << 10;
inline constexpr std::size_t message_bytes_max = 4 + header_bytes_max + chunk_bytes_max;
/// Bytes of a reason (Bye, Failed, Verdict) that one end tells the other. A longer text is cut.
inline constexpr std::size_t reason_bytes_max = 1000;
/// An event of the history.
inline constexpr std::size_t event_bytes_max = 16 << 10;
inline constexpr std::size_t software_bytes_max = 64;     // The name of a client's program.
inline constexpr std::size_t data_shape_bytes_max = 128;  // The shape of a client's data, in words.
inline constexpr std::size_t setup_bytes_max = 128;       // How a client has trained, in words.
inline constexpr std::size_t features_max = 64;           // Names in the list of Hello or Welcome.
inline constexpr std::size_t feature_name_bytes_max = 32;
inline constexpr int upload_notes_max = 8;  // UploadBegin.notes; more are left out.
/// The name of a run's model, and of its strategy, optimizer and codec.
inline constexpr std::size_t run_model_bytes_max = 512;
inline constexpr std::size_t spec_bytes_max = 64 << 10;
/// A client's message before Ready.
inline constexpr std::size_t hello_bytes_max = 16 << 10;
/// A client's answer to Welcome. Ready has three numbers for each of up to scaled_values_max values
/// (model_spec.hpp). A Bye has up to tensors_told_bytes_max and a reason.
inline constexpr std::size_t ready_bytes_max = 132 << 10;
inline constexpr std::size_t request_bytes_max = 64 << 10;
inline constexpr std::size_t json_depth_max = 100;  // Levels of nested arrays and objects.
/// Values of one JSON text, each of which takes up to 100 bytes of memory. The names and shapes of
/// tensors_max tensors have fewer.
inline constexpr std::size_t json_values_max = 2 << 20;
/// A sender sizes its chunks so that each takes about this long. So a control message waits no
/// longer than that behind a chunk.
inline constexpr auto chunk_time_goal = 250ms;

/// The names and shapes that a client tells a server whose model has other tensors.
inline constexpr std::size_t tensors_told_bytes_max = 128 << 10;
static_assert(tensors_told_bytes_max + 2 * reason_bytes_max < ready_bytes_max);

// Models and updates.
inline constexpr std::uint64_t parameters_max = 1ull << 36;
/// The default of a client's --max-parameters. Values take 4 bytes each, and training takes about
/// four times that.
inline constexpr std::uint64_t client_parameters_max = 1ull << 28;
inline constexpr std::size_t tensors_max = 1 << 16;
inline constexpr std::size_t tensor_name_bytes_max = 512;
inline constexpr std::size_t dimensions_max = 16;            // Of one tensor.
inline constexpr std::size_t metadata_entries_max = 10'000;  // In the header of a safetensors file.
inline constexpr std::size_t model_name_bytes_max = 64;      // NAME in custom:NAME.
/// The assumed speed of a client that trains for a given time.
inline constexpr double steps_per_s_max = 1e5;
/// A robust rule of --aggregate compares all pairs of a round's updates, and has a block of each in
/// memory.
inline constexpr std::uint32_t robust_updates_max = 256;
/// The number of threads that read updates for a robust rule at the same time. Each has up to two
/// files open: an update and, for a delta, its reference.
inline constexpr int robust_readers_max = 32;
/// Bytes of the right factors of low-rank tensors that it keeps of all updates together. Those
/// above an update's share are read or drawn again for each block.
inline constexpr std::size_t robust_rights_bytes_max = 1 << 30;
/// The number of elements of its result that a closing round compares with each update
/// (mean_sample.hpp).
inline constexpr std::uint64_t mean_sample_elements = 8ull << 16;
/// The largest file with a codec's state that a client reads.
inline constexpr std::uint64_t codec_state_bytes_max = 1ull << 32;

// Training. A client refuses what is above: its memory for activations grows with the batch.
inline constexpr std::uint32_t batch_size_max = 1 << 16;  // In examples.
inline constexpr std::uint32_t accumulate_max = 1 << 16;  // In mini-batches of a step.

// Metrics.
inline constexpr std::size_t metrics_max = 16;  // Declared by one trainer, beside its loss.
inline constexpr std::size_t metric_name_bytes_max = 64;
/// The weight of one value: examples, tokens or counts.
inline constexpr double metric_weight_max = 1e15;

// The server's memory for bulk data in flight: all chunk buffers of all sessions together.
inline constexpr std::size_t bulk_bytes_max = 64 << 20;
/// A transfer holds up to three chunks: the one being read, the one waiting, the one being written.
inline constexpr std::size_t chunks_of_transfer = 3;
inline constexpr std::size_t spare_uploads_max = 64;  // Spool files that are kept for reuse.
/// N of --keep-updates; "all" has no limit.
inline constexpr std::uint32_t kept_rounds_max = 100'000;
/// The description of a kept round has some 300 bytes for each update, 450 for a delta.
inline constexpr std::uint64_t kept_description_bytes_max = 64 << 20;

// The governor of traffic (shared/net/governor.hpp).
inline constexpr double traffic_bits_per_s_min = 8000;  // A slower limit would be an outage.
inline constexpr double traffic_bits_per_s_max = 1e12;
inline constexpr std::size_t quiet_windows_max = 16;      // Daily windows with limits of their own.
inline constexpr std::size_t traffic_quantum = 16 << 10;  // Bytes that a connection takes in turn.
/// How often a waiting connection looks for a changed limit.
inline constexpr auto traffic_look_every = 1s;
/// The part of an unused rate that may be made up for later.
inline constexpr auto traffic_burst = 100ms;
/// A receiver with a limit lets its peer send ahead as many bytes as came from it in traffic_ahead,
/// at the pace of the last traffic_measured. A round trip longer than traffic_ahead costs speed.
inline constexpr auto traffic_ahead = 1s;
inline constexpr auto traffic_measured = 250ms;
inline constexpr std::uint64_t traffic_ahead_bytes_min = 2 * chunk_bytes_min;

// Sessions.
inline constexpr auto handshake_max =
    15s;  // For TCP, TLS and HTTP after the accept; then for Hello.
/// The time from Welcome to Ready. A client that loads model and data for longer comes back
/// afterwards.
inline constexpr auto ready_max = 2min;
/// Addresses of one name; a client tries them in turn.
inline constexpr std::size_t addresses_max = 8;
/// The head of a proxy's answer to CONNECT.
inline constexpr std::size_t proxy_answer_bytes_max = 16 << 10;
/// The longest silence: no byte and no pong from the peer.
inline constexpr auto liveness_max = 60s;
inline constexpr auto close_max = 3s;  // The time for a graceful close.
inline constexpr std::size_t sessions_max = 8192;
inline constexpr std::size_t sessions_of_member_max = 4;  // A member has two while it reconnects.
/// The open files that are kept for the store, the spool, versions and admin pages.
inline constexpr std::size_t files_reserved = 128;

// Strangers: connections that have not authenticated yet.
inline constexpr std::size_t strangers_max = 1024;
inline constexpr std::size_t strangers_of_address_max = 512;
/// The most bytes of a ClientHello, with the heads of its TLS records. A handshake begins when all
/// of it is there.
inline constexpr std::size_t client_hello_bytes_max = 16 << 10;
inline constexpr std::size_t handshakes_max = 128;  // At the same time; more must wait.
inline constexpr std::size_t handshakes_of_address_max = 64;
inline constexpr std::size_t handshakes_reserved = 32;  // For addresses where members were lately.
/// A handshake that has taken this long ends when another one waits for its place: a few round
/// trips of its connection, at least handshake_turn and at most handshake_turn_max.
inline constexpr int handshake_round_trips = 4;
inline constexpr auto handshake_turn = 1s;
inline constexpr auto handshake_turn_max = 4s;
/// How many handshakes may be fruitless (no member was there in the end), at once and in a second:
/// from one address, and from all addresses together where no member was lately. More must wait.
inline constexpr double fruitless_of_address = 64;
inline constexpr double fruitless_of_address_per_s = 16;
inline constexpr double fruitless_of_unknown = 256;
inline constexpr double fruitless_of_unknown_per_s = 64;
inline constexpr std::size_t addresses_remembered_max = 4096;
/// How long an address counts as one where a member was.
inline constexpr auto member_address_time = 24h;
inline constexpr std::size_t addresses_of_member_max = 16;  // The newest addresses are remembered.
/// The number of connections that are accepted in a turn; more wait in the system's queue. This
/// slows down those who reopen what is closed, and a queue of 4,096 is a wait of 1.6 s.
inline constexpr std::size_t accepts_of_turn = 25;
inline constexpr auto accept_turn = 10ms;
/// How often the server looks for overdue connections, as long as there are connections that have
/// not authenticated.
inline constexpr auto strangers_look = 100ms;

// Log lines and events that a peer can cause, by kind: a few in a window, then only their number.
inline constexpr int lines_of_kind_max = 10;
inline constexpr auto lines_window = 60s;
inline constexpr auto lines_look = 10s;  // How often it looks for windows that have ended.
inline constexpr std::size_t line_kinds_max = 4096;  // Kinds that are counted at the same time.

// Admin pages.
/// Connections to the admin port that have not sent their request, or have shown no token; the
/// limits are like those of strangers above. Probes and logins are answered there: a connection
/// that is past it takes none of these places.
inline constexpr std::size_t admin_strangers_max = 40;
inline constexpr std::size_t admin_strangers_of_address_max = 24;
inline constexpr std::size_t admin_readings_max = 16;
inline constexpr std::size_t admin_readings_of_address_max = 12;
inline constexpr auto admin_request_max = 5s;  // From the accept to the end of the request.
/// Requests that are worked on at the same time: all; those without an operator's or the pages'
/// token (open); those of all but operators (viewers); those of one operator, or of one address
/// without one.
inline constexpr std::size_t admin_requests_max = 24;
inline constexpr std::size_t admin_requests_open_max = 18;
inline constexpr std::size_t admin_requests_viewers_max = 20;  // The rest are for operators.
inline constexpr std::size_t admin_requests_of_one_max = 12;
inline constexpr int admin_page_rounds_max = 1000;     // Rounds of one page of /api/rounds.
inline constexpr int admin_page_choices_max = 100;     // Rounds of one page of /api/choices.
inline constexpr std::size_t admin_sessions_max = 64;  // Logins at the same time.
inline constexpr auto admin_session_max = 12h;         // The length of a login.
inline constexpr std::size_t admin_body_bytes_max = 16 << 10;  // The body of a request.
/// Wrong tokens of an address in login_window that are told apart from a flood.
inline constexpr int wrong_tokens_max = 10;
/// Addresses that are counted separately.
inline constexpr std::size_t wrong_token_addresses_max = 1024;
inline constexpr auto login_window = 60s;
/// The part of a request that the audit keeps.
inline constexpr std::size_t control_text_bytes_max = 1000;
inline constexpr std::size_t operator_name_bytes_max = 64;
/// Streams of events and downloads at the same time, by the same groups as requests.
inline constexpr std::size_t admin_streams_max = 32;
inline constexpr std::size_t admin_streams_open_max = 24;
inline constexpr std::size_t admin_streams_viewers_max = 28;  // The rest are for operators.
inline constexpr std::size_t admin_streams_of_one_max = 16;
inline constexpr auto admin_stream_beat = 1s;    // How often a stream looks for news.
inline constexpr auto admin_stream_quiet = 15s;  // Silence after which it sends a sign of life.
inline constexpr auto admin_stream_stall = 10s;  // For the other end to take what was sent.
inline constexpr int admin_stream_buffer = 16 << 10;  // The kernel's buffer of a stream of events.
/// Bytes of a checkpoint that are sent at once.
inline constexpr std::size_t admin_file_chunk = 256 << 10;
inline constexpr int admin_page_members_max = 200;
inline constexpr int admin_page_updates_max = 500;
inline constexpr int admin_page_runs_max = 50;
inline constexpr int admin_page_events_max = 200;
inline constexpr int admin_search_events = 10'000;  // Events that a search reads at a time.
inline constexpr int admin_page_versions_max = 100;
inline constexpr std::size_t admin_query_bytes_max = 1024;
inline constexpr std::size_t admin_transfers_max = 50;  // Shown at the same time.
/// The fewest clients that a figure about the spread between clients may be the mean of, so that
/// none of them can be recognized.
inline constexpr std::size_t admin_group_min = 5;
/// The fewest clients that any other figure of the pages may be the mean of. Evaluators' figures
/// are shown.
inline constexpr std::size_t admin_mean_min = 3;
inline constexpr std::size_t troubles_max = 8192;  // Clients whose last trouble is remembered.

// Traces of rounds (--otlp-endpoint).
/// Rounds that wait to be sent; then the oldest go.
inline constexpr std::size_t trace_rounds_max = 256;
inline constexpr int trace_tasks_of_read = 32;  // Tasks that one look into the history reads.
inline constexpr std::size_t trace_spans_of_task = 6;  // The task's own, and the parts of its time.
inline constexpr std::size_t trace_spans_of_round = 3;  // Without those of its tasks.
inline constexpr std::size_t otlp_spans_max = 512;      // Spans in one request.
inline constexpr auto otlp_look = 1s;          // How often the exporter looks for rounds to send.
inline constexpr auto otlp_timeout = 10s;      // For one request, unless the environment sets it.
inline constexpr auto otlp_timeout_max = 60s;  // The longest that the environment may set.
inline constexpr auto otlp_retry_max = 5min;   // For one request with all its repetitions.
inline constexpr auto otlp_flush_max = 5s;     // At the end of the process.
inline constexpr std::uint64_t otlp_answer_bytes_max = 64 << 10;
inline constexpr std::size_t otlp_headers_bytes_max = 16 << 10;

// A program that runs as a service.
inline constexpr auto pulse_every = 2s;  // How often it looks at its own state.
/// After this long without a beat of the engine's pulse the server is no longer alive (/livez).
inline constexpr auto pulse_silence_max = 60s;
/// With less room on the disk of the state the server is not ready (/readyz).
inline constexpr std::uint64_t ready_bytes_free_min = 16 << 20;
/// A clean end should take no longer. The services of deploy/systemd/ allow it and a margin, and
/// a kill after that loses nothing.
inline constexpr auto stop_max = 60s;

// What a member may send without being asked: a number at once, and a number a second. Answers to
// the server's requests add to it (member_quota.hpp). Bytes are those of headers.
/// Requests with allowed answers at the same time.
inline constexpr double quota_requests_open = 64;
inline constexpr double quota_messages = 200;
inline constexpr double quota_messages_per_s = 10;
inline constexpr double quota_header_bytes = 2 << 20;
inline constexpr double quota_header_bytes_per_s = 64 << 10;
inline constexpr double quota_downloads = 8;
inline constexpr double quota_downloads_per_s = 0.1;
inline constexpr double quota_renewals = 3;
inline constexpr double quota_renewals_per_s = 1.0 / 3600;
inline constexpr double quota_sessions = 60;  // On a bad line a client comes back every 5 s or so.
inline constexpr double quota_sessions_per_s = 0.5;
inline constexpr double repeated_enrolments = 10;  // For a client that lost the answer.
inline constexpr double repeated_enrolments_per_s = 0.1;
/// A member whose session ended by its own fault must wait before the next one. The pause doubles
/// with each fault, until there was none for fault_memory.
inline constexpr auto fault_pause_min = 2s;
inline constexpr auto fault_pause_max = 5min;
inline constexpr auto fault_memory = 1h;

// Checks of `doctor`.
inline constexpr int doctor_syncs = 20;            // Syncs of the disk, to measure their time.
inline constexpr auto slow_sync = 100ms;           // A longer sync is called slow.
inline constexpr double certificate_days_min = 7;  // With fewer days left it warns.

// Ranks of a site.
inline constexpr int ranks_max = 4096;
inline constexpr double rank_timeout_s = 60;  // The default of --rank-timeout.
inline constexpr auto rank_beat = 1s;         // How often agent and rank send a sign of life.
inline constexpr auto rank_silence = 15s;     // After this silence the other end counts as lost.
/// Work without a batch or a collective for so long hangs.
inline constexpr auto rank_progress = 10min;
inline constexpr auto rank_gone_wait = 200ms;  // For a rank's end after its connection has closed.
inline constexpr auto rank_send_wait = 10s;    // For the other end to take bytes.
inline constexpr auto rank_greeting = 5s;      // From a connection to its hello.
inline constexpr std::size_t rank_greeting_bytes_max = 1 << 10;  // A line before the hello.
/// Connections that have not proven that they know the site's secret, in addition to one for each
/// rank.
inline constexpr std::size_t rank_strangers_max = 16;
inline constexpr std::size_t rank_line_bytes_max = 64 << 20;  // A message after the hello.
/// A rank that leaves more unsent at the agent is lost. One message more always has room.
inline constexpr std::size_t rank_unsent_bytes_max = 2 * rank_line_bytes_max;
inline constexpr auto rank_look = 250ms;  // Between two looks at which ranks are silent.
/// Connections that the system keeps until they are accepted, in addition to one for each rank.
inline constexpr std::size_t rank_waiting_max = 128;
/// One connection is accepted in a turn for this many ranks.
inline constexpr std::size_t ranks_of_accept_turn = 64;
inline constexpr int rank_stranger_lines_max = 20;  // Log lines about them, in lines_window.
// The store through which the ranks meet. Gloo keeps 200 bytes in it for each pair of a group's
// ranks, those of one rank as one value.
inline constexpr std::size_t rank_keys_max = 1 << 20;
inline constexpr std::size_t rank_key_bytes_max = 4 << 10;
inline constexpr std::size_t rank_value_bytes_max = 1 << 20;
inline constexpr std::size_t rank_store_bytes_max = 8 << 20;  // For each rank of the site.
/// Requests of one rank that wait for a key: one for each thread that makes a group.
inline constexpr std::size_t rank_waits_max = 256;
/// The part of a rank's payload that is sent at once.
inline constexpr std::size_t hook_slice_bytes = 1 << 20;
inline constexpr int site_attempts_max = 10;    // Attempts at one job, with a new group each time.
inline constexpr auto rank_restart_pause = 1s;  // Before a rank that ended is started again.

// --trace writes no more than this.
inline constexpr std::size_t trace_spans_max = 100'000;  // Spans of one rank in one round.
inline constexpr std::uint64_t trace_bytes_max = std::uint64_t{1} << 30;  // The file's size.

// A trainer that is a user's own program.
inline constexpr std::size_t trainer_message_bytes_max = 64 << 20;
inline constexpr auto trainer_grace = 10s;     // For it to end, or to answer a cancelled request.
inline constexpr auto trainer_pause_min = 1s;  // Before it is started anew; doubles each time.
inline constexpr auto trainer_pause_max = 60s;
inline constexpr int trainer_lines_max = 1000;  // Lines of its output in the log, in lines_window.
inline constexpr std::size_t trainer_line_bytes_max = 1000;
inline constexpr std::size_t trainer_last_lines = 3;  // Lines of its output that explain its end.
inline constexpr auto trainer_output_wait = 500ms;    // For its last output after it has ended.
inline constexpr auto trainer_gone_wait = 2s;         // For its end after its socket has closed.
inline constexpr auto trainer_look = 50ms;  // Between two looks at it while someone waits for it.
/// Folders in memory that a start looks at.
inline constexpr std::size_t tensor_folders_max = 10'000;
/// For its watcher to end the processes that it has started.
inline constexpr auto watcher_wait = 10s;

// Queues.
inline constexpr std::size_t runs_queued_max = 1000;
inline constexpr std::size_t outbox_messages_max = 64;  // Messages that wait to be sent to a peer.

// Secrets in files.
inline constexpr std::size_t secret_file_bytes_max = 4 << 10;
inline constexpr std::size_t secret_bytes_min = 16;  // The admin pages' token.

// Waiting.
inline constexpr double deadline_s_min = 0.1;      // The shortest --deadline: rounds must not spin.
inline constexpr auto full_disk_pause = 1s;        // Between two attempts to write to a full disk.
inline constexpr int full_disk_attempts_max = 60;  // Attempts of a client that enters a run.
/// If sessions of one client replace each other displaced_max times within displaced_window, the
/// server suspects that two machines use the same identity.
inline constexpr auto displaced_window = 120s;
inline constexpr int displaced_max = 4;
/// Events that may wait to be written to the history. The log has all of them.
inline constexpr int notes_under_way_max = 100;
/// The server looks at what others have written into the history (revoked clients, queued runs)
/// when it has changed, at most once in history_pace; and once in history_look at the least.
inline constexpr auto history_pace = 250ms;
inline constexpr auto history_look = 10s;
/// How often the history learns which members are here.
inline constexpr auto last_seen_pace = 60s;
/// The pause before a client that failed is asked again in the same round. It doubles each time, up
/// to ask_again_max.
inline constexpr auto ask_again_min = 2s;
inline constexpr auto ask_again_max = 5min;
/// A client that was asked misses_max times in a row, without an update that counts, is not asked
/// for a while: for twice the time that its last miss cost, then for twice as long after each,
/// within these bounds.
inline constexpr int misses_max = 3;
inline constexpr auto bench_min = 10s;
inline constexpr auto bench_max = 24h;
/// A client's misses are forgotten when its program is started anew, so many times between two
/// updates that count.
inline constexpr int fresh_starts_max = 5;
/// A client that was here no longer ago is expected to come again.
inline constexpr auto lately = 24h;
/// A run ends when all its clients fail for one reason, each so many times in a row.
inline constexpr int failures_alike_max = 5;
/// The pace of an upload is checked once in each window (a longer one where chunk_bytes_min takes
/// longer). It must bring all of the upload within --deadline. Without one it must bring all within
/// upload_time, or be at least upload_bytes_per_s_min. A session whose upload is slower is ended; a
/// task with so many such uploads is given to another client, at once if the upload brought less
/// than trickle_share of that.
inline constexpr auto upload_window = 60s;
inline constexpr auto upload_time = 120s;
inline constexpr double upload_bytes_per_s_min = 1024;
inline constexpr double trickle_share = 1.0 / 8;
inline constexpr int slow_uploads_max = 3;
inline constexpr int wrong_digests_max = 3;  // For one task; then the update is refused.
/// At the end of a run, how long the server waits for each next evaluation that is still missing.
inline constexpr auto last_evaluations_max = 60s;
// Versions that are kept for an evaluator that is slower than the rounds: as many as fit into
// evaluations_behind_bytes, but at least _min and at most _max versions.
inline constexpr std::uint64_t evaluations_behind_bytes = 8ull << 30;
inline constexpr std::uint32_t evaluations_behind_min = 30;
inline constexpr std::uint32_t evaluations_behind_max = 1000;
/// Versions that one evaluator is asked for at a time.
inline constexpr std::uint32_t evaluations_asked_max = 30;
/// The longest chain of coded steps that is sent instead of the whole model: each is an open file.
inline constexpr std::size_t coded_steps_max = 256;
/// At the end of a run, how long the server waits for a client to answer the final Bye, or to
/// reconnect and get it. A little longer than backoff_max.
inline constexpr auto farewell_max = 20s;
/// How often a client saves a running download to disk.
inline constexpr auto download_save_every = 10s;
inline constexpr auto later_pause = 2s;  // Before a client repeats an upload after LATER.
// Of an attempt at a masked round: an upload may lengthen a step to so many, and one member may say
// so many messages once more.
inline constexpr int masked_words_steps_max = 10;
inline constexpr int masked_repeats_max = 100;
/// What a client keeps of its attempt at a masked round: five messages of the server's, in base64.
inline constexpr std::size_t attempt_record_bytes_max = 4 << 20;
static_assert(attempt_record_bytes_max > 2 * 5 * header_bytes_max);
/// The masked rounds that a site may ever contribute to, and the file that has a line for each.
inline constexpr std::size_t contributions_max = 200'000;
inline constexpr std::uint64_t contributions_bytes_max = 64 << 20;

// Reconnecting: exponential backoff with full jitter.
inline constexpr auto backoff_min = 100ms;
inline constexpr auto backoff_max = 15s;
/// A client that waits for a run says Hello again within backoff_max. After this time without one
/// it is away.
inline constexpr auto newcomer_max = 2 * backoff_max;
/// After a connection of at least this length the pauses start from backoff_min again.
inline constexpr auto connection_settled = 5s;

}  // namespace fl::limits
