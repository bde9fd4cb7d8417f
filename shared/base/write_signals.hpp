// SPDX-License-Identifier: Apache-2.0
// A write that can't be done is an error (EPIPE, EFBIG), which we handle; Linux would end the
// program with a signal. Every program calls this first.
#pragma once

namespace fl {

/// Ignores SIGPIPE (nobody reads) and SIGXFSZ (a file would grow beyond `ulimit -f`). A program
/// that we start gets the defaults back.
void ignore_write_signals();
/// Restores the defaults. Makes only calls that POSIX allows after fork().
void restore_write_signals();

}  // namespace fl
