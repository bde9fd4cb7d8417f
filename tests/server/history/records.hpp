// SPDX-License-Identifier: Apache-2.0
// Records for the store's tests. Every field is set, each to a different value.
#pragma once

#include "server/history/records.hpp"

namespace fl::test {

using namespace fl::server;

inline RunRecord some_run(std::string key = "0123456789abcdef") {
  RunRecord run;
  run.key = std::move(key);
  run.model = "cnn";
  run.seed = 0xfedc'ba98'7654'3210;  // More than a signed 64-bit number holds.
  run.rounds_total = 3;
  run.config_json = R"({"codec": "qsgd:8"})";
  run.started_at = 1000.5;
  return run;
}

inline CheckpointRecord some_checkpoint(Version version) {
  const std::string name = "v" + std::to_string(version);
  CheckpointRecord checkpoint;
  checkpoint.version = version;
  checkpoint.file = name + ".safetensors";
  checkpoint.bytes = 4096 + version;
  checkpoint.digest = Digest::of(bytes_of(std::string_view(name)));
  checkpoint.delta_file = version == 0 ? "" : name + ".delta";
  checkpoint.delta_bytes = 100 * version;
  return checkpoint;
}

inline RoundRecord some_round(Round number) {
  RoundRecord round;
  round.round = number;
  round.base_version = number - 1;
  round.started_at = 2000 + 10 * number;
  round.target = 2;
  return round;
}

inline TaskRecord some_task(std::string client, std::uint64_t examples = 100) {
  TaskRecord task;
  task.client = std::move(client);
  task.examples = examples;
  task.codec = "qsgd:8";
  task.codec_reason = "it fits";
  return task;
}

inline TaskRecord accepted(TaskRecord task) {
  task.state = TaskState::accepted;
  task.steps = 50;
  task.loss = 1.25;
  task.predictions = 4321.5;
  task.train_seconds = 3.5;
  task.norm = 0.75;
  task.update_bytes = 12'345;
  task.raw_bytes = 99'999;
  task.encode_seconds = 0.125;
  task.save_seconds = 0.25;
  task.residual_seconds = 0.0625;
  task.digest_seconds = 0.015625;
  task.sync_seconds = 0.03125;
  task.decode_seconds = 0.0625;
  task.nmse = 0.01;
  task.ready_seconds = 4.5;
  task.upload_seconds = 0.75;
  task.reference = TaskId{17};
  task.ranks = 4;
  task.compute_seconds = 2.5;
  task.exposed_seconds = 0.75;
  task.fp32_steps = 6;
  task.setup = "cuda, bf16, 4 ranks";
  task.hidden_seconds = 2.25;
  task.coding_seconds = 0.5;
  task.spool_file = "t" + std::to_string(number_of(task.id));
  task.update_digest = Digest::of(bytes_of(std::string_view(task.spool_file)));
  return task;
}

inline RoundCommit some_commit(RunId run, Round round) {
  RoundCommit commit;
  commit.run = run;
  commit.round = round;
  commit.ended_at = 2007.5 + 10 * round;
  commit.train_loss = 1.0 / round;
  commit.bytes_up = 1000 * round;
  commit.bytes_down = 2000 * round;
  commit.checkpoint = some_checkpoint(round);
  return commit;
}

inline EvaluationRecord some_evaluation(RunId run, Version version, std::string client,
                                        std::uint64_t examples, double loss, double accuracy) {
  EvaluationRecord evaluation;
  evaluation.run = run;
  evaluation.version = version;
  evaluation.client = std::move(client);
  evaluation.examples = examples;
  evaluation.loss = loss;
  evaluation.kinds = {known_metric("accuracy")};
  evaluation.metrics = {{.name = "accuracy", .value = accuracy}};
  return evaluation;
}

inline TokenRecord some_token(std::string id, std::string name) {
  TokenRecord token;
  token.id = std::move(id);
  token.name = std::move(name);
  token.secret_hash = std::string(64, 'a');
  token.expires_at = 9000;
  return token;
}

inline ClientRecord some_client(std::string name, std::string serial) {
  ClientRecord client;
  client.name = std::move(name);
  client.certificate_serial = std::move(serial);
  client.enrolled_at = 5000;
  return client;
}

}  // namespace fl::test
