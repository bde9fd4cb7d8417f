// SPDX-License-Identifier: Apache-2.0
// fl-server. How one update travels: net/listener.cpp (TLS: who is it) -> net/session.cpp (its
// chunks, into the spool) -> round/uploads.cpp (is it right, is it durable, add it up) ->
// round/verdict_log.cpp (its row, then the answer) -> round/engine.cpp (the round that it closes)
// -> versions/make_version.cpp (the new model) -> history/store_rounds.cpp (the row). app/serve.cpp
// puts these parts together.
#include "server/app/commands.hpp"
#include "server/app/serve.hpp"
#include "shared/base/log.hpp"
#include "shared/base/state_lock.hpp"

#include <fmt/format.h>

#include <exception>

namespace {

fl::Result<int> run(const fl::ServerOptions& options) {
  if (options.command == nullptr) return fl::serve(options);
  const auto done = options.command->run(options);
  return done ? fl::Result<int>(0) : fl::Result<int>(done.error());
}

}  // namespace

int main(int argc, char** argv) {
  fl::keep_files_private();
  fl::ServerOptions options;
  if (const int code = fl::parse_options(argc, argv, fl::server_commands(), options); code >= 0)
    return code;
  fl::start_log(options.log_json, options.verbose);
  try {
    const auto result = run(options);
    if (result) return *result;
    fl::log_fatal("fl-server", result.error().message());
  } catch (const std::exception& error) {
    fl::log_fatal("fl-server", error.what());
  }
  return 1;
}
