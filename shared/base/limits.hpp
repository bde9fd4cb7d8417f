// The named limits of every queue, message, wait and retry that no flag sets. Bytes unless named.
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
/// A sender sizes its chunks so that one takes about this long, and control never waits longer.
inline constexpr auto chunk_time_goal = 250ms;

// Models and updates.
inline constexpr std::uint64_t parameters_max = 1ull << 36;
inline constexpr std::size_t tensors_max = 1 << 16;
inline constexpr std::size_t tensor_name_bytes_max = 512;
inline constexpr std::size_t model_name_bytes_max = 64;    // Of custom:NAME.
inline constexpr std::uint64_t examples_max = 1ull << 40;  // Weight of one update.
inline constexpr double steps_per_s_max = 1e5;             // Of a client that trains for a time.
/// A client reads no longer file with the state of its codec.
inline constexpr std::uint64_t codec_state_bytes_max = 1ull << 32;

// Memory of the server for bulk data in flight: all chunk buffers of all sessions together.
inline constexpr std::size_t bulk_bytes_max = 64 << 20;
inline constexpr std::size_t bulk_transfers_max = 512;  // More wait for their turn.
inline constexpr std::size_t spare_uploads_max = 64;    // Spool files kept for the next round.

// Sessions.
inline constexpr auto handshake_max = 15s;  // TCP + TLS + HTTP upgrade + hello, from accept.
inline constexpr auto ready_max = 30min;    // For a client to load its model and data.
inline constexpr auto liveness_max = 60s;   // Without a byte (or a pong) from the peer.
inline constexpr auto close_max = 3s;       // For a graceful close.
inline constexpr std::size_t sessions_max = 4096;
inline constexpr int admin_requests_max = 64;  // At the same time.
inline constexpr std::size_t runs_queued_max = 1000;
inline constexpr std::size_t outbox_messages_max = 64;  // Control messages to one peer.

// Waiting.
inline constexpr auto full_disk_pause = 1s;     // Between two tries to write to a full disk.
inline constexpr auto next_run_poll = 250ms;    // How often a server without a run looks for one.
inline constexpr auto displaced_window = 120s;  // In which a client's sessions displace each other
inline constexpr int displaced_max = 4;         // so often before the server suspects a copy.
inline constexpr int refusals_noted_max = 100;  // In the history, of an hour.
inline constexpr int notes_under_way_max =
    100;  // Events that wait for the history; the log has all.
inline constexpr auto revocation_poll = 250ms;  // How often the server looks for revoked clients.
inline constexpr auto initialiser_patience =
    20s;  // Before another client is asked for the initial weights.
inline constexpr auto ask_again_min = 2s;  // Before a client that failed is asked again in a round;
inline constexpr auto ask_again_max = 5min;  // doubles up to this.
inline constexpr auto last_evaluations_max =
    60s;  // For one more of the evaluations that are still to come at the run's end.
// Versions that are kept for an evaluator that is slower than the rounds: as many as have so many
// bytes, within these numbers.
inline constexpr std::uint64_t evaluations_behind_bytes = 8ull << 30;
inline constexpr std::uint32_t evaluations_behind_min = 30;
inline constexpr std::uint32_t evaluations_behind_max = 1000;
inline constexpr std::uint32_t evaluations_asked_max = 30;  // Of an evaluator at a time.
inline constexpr auto farewell_max = 20s;  // For a client to answer that the run is over, or to
                                           // come back and hear it: a little above backoff_max.
inline constexpr auto download_save_every =
    10s;  // How much of a download's time a restart of the client may cost.
inline constexpr auto later_pause = 2s;  // Before a client repeats an upload put off by the server.

// Reconnecting: exponential with full jitter.
inline constexpr auto backoff_min = 100ms;
inline constexpr auto backoff_max = 15s;
inline constexpr auto connection_settled =
    5s;  // One that lasts so long begins anew with the pauses.

}  // namespace fl::limits
