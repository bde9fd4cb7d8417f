// SPDX-License-Identifier: Apache-2.0
// The program fl-client: a client whose trainers are the built-in models or a program of the
// user's. client_main.cpp starts it; agent/agent.cpp has the main loop (connect, serve tasks,
// reconnect); learn/ trains.
#include "client/client_main.hpp"

int main(int argc, char** argv) { return fl::client_main(argc, argv, fl::ClientProgram()); }
