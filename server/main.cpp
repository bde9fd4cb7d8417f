// SPDX-License-Identifier: Apache-2.0
// fl-server. app/serve.cpp puts its parts together. How one update travels through them:
//
//   Listener::serve             net/listener.cpp         TLS: whose certificate is it
//   Admission::admit            net/admission.cpp        is that certificate still let in
//   WsLink::read_all            shared/wire/ws_link.cpp  bytes become messages (message.cpp)
//   Session::serve              net/session.cpp          what each message asks for
//   RunHost::begin_upload       round/run_host.cpp       onto the engine's strand
//   Uploads::begin              round/uploads.cpp        may it come; where it goes on
//   Session::take_chunk         net/session.cpp          each chunk into its file (upload.cpp)
//   Uploads::finish             round/uploads.cpp        the whole end of an upload:
//     DecodedIntake::take       round/decoded_intake.cpp   takes it in (update_intake.hpp):
//       RoundSums::add          round/round_sums.cpp         its digest; its bytes are synced;
//                                                            decoded block by block
//                                                            (PayloadReader), and added up
//                                                            (Accumulator)
//       NormJudge::judge        round/norm_judge.cpp         is its norm too large
//     TaskDecisions::end_task   round/task_decisions.cpp   ends the task, and waits for:
//   VerdictLog::commit_all      round/verdict_log.cpp    beside the main loop: files' names synced,
//     Rounds::decide            history/rounds.cpp         then groups of rows in table task
//   Session::finish_upload      net/session.cpp          only now the client is told
//   Collector::collect          round/collector.cpp      when has the round enough
//   RoundEngine::settle         round/engine.cpp         the sums become final
//   RoundEngine::apply          round/engine.cpp         makes the next version:
//     NextVersion::make         round/next_version.cpp     of the mean of the sums
//     make_next_version         versions/make_version.cpp  the new model, a file
//   RoundEngine::record         round/engine.cpp
//     Rounds::commit            history/rounds.cpp         rows of tables round and checkpoint
#include "server/app/command_audit.hpp"
#include "server/app/commands.hpp"
#include "server/app/serve.hpp"
#include "shared/base/log.hpp"
#include "shared/base/state_lock.hpp"
#include "shared/base/write_signals.hpp"

#include <fmt/format.h>

#include <exception>

namespace {

fl::Result<int> run(const fl::server::CommandLine& line) {
  return line.command == nullptr ? fl::server::serve(line.program) : fl::server::run_command(line);
}

}  // namespace

int main(int argc, char** argv) {
  fl::keep_files_private();
  fl::ignore_write_signals();
  fl::server::CommandLine line;
  if (const int code = fl::server::parse_options(argc, argv, fl::server::server_commands(), line);
      code >= 0)
    return code;
  fl::start_log(line.program.log_json, line.program.verbose);
  try {
    const auto result = run(line);
    if (result) return *result;
    fl::log_fatal("fl-server", result.error().message());
  } catch (const std::exception& error) {
    fl::log_fatal("fl-server", error.what());
  }
  return 1;
}
