// SPDX-License-Identifier: Apache-2.0
#include "server/admin/pages/remedies.hpp"

#include <array>

namespace fl::server {

namespace {

// The first row that fits counts, so special rows stand before general ones.
constexpr std::array table{
    Remedy{" says: ", "The client's own words: something failed there.",
           "Look at its log, and mend it there. It is asked again by itself."},
    Remedy{" more within ",
           "The same thing happens again and again: from here on it was counted only.",
           "Look at the events of this kind before this one."},
    Remedy{"has displaced its own session", "Two programs connect with one identity.",
           "End one of them. A copied state folder is no second client: enrol a name of its own."},
    Remedy{"was not let in", "Its certificate is revoked, replaced, or not of this federation.",
           "If it should take part, enrol it again: fl-server enroll --name NAME."},
    Remedy{"an enrolment was refused",
           "Somebody used a join token that is used up, too old, or not of this server.",
           "Make a new one with fl-server enroll --name NAME. Many of these in a row are an attack "
           "on the port, or a script that tries for ever."},
    Remedy{"has other tensors than the client's", "Its model is another than the run's.",
           "Start it with the run's model, or begin a run of its model."},
    Remedy{"was turned away", "The client does not fit the run, or what it was enrolled for.",
           "Mend at the client what the text names, or let it join again with another token: "
           "fl-server enroll --name NAME."},
    Remedy{
        "the session ended", "The client sent what the protocol does not allow.",
        "Use one version at both ends. A program that nobody knows may be an attack: revoke it."},
    Remedy{"was enrolled again with a new key",
           "Somebody has joined by this name with another key.",
           "End the program with the old state folder. If it was none of yours, revoke the name."},
    Remedy{"update refused",
           "The update failed a check: its size, its numbers, or its norm beside the others'.",
           "Look at the client's data and settings. Its data stay out of the model until then."},
    Remedy{"what most of them say counts", "Evaluators measure this metric in two ways.",
           "Agree on one way, and start the other evaluators with it. The run goes on meanwhile."},
    Remedy{"says that its training loss is",
           "Its training diverges, or it claims what it did not measure.",
           "Look at its data and learning rate. If it should not be so, revoke it."},
    Remedy{"cosines are not known", "An update could not be read again when its round closed.",
           "Nothing for the model, whose sums had it. Look at the disk where --state lies."},
    Remedy{"to be repeated", "The bytes that came were not those that were announced.",
           "Nothing: the client sends it again. If it happens often, look at its disk and memory."},
    Remedy{"its upload sends", "The link is slower than the round allows.",
           "A longer --deadline, or fewer bytes: --codec auto chooses by the link."},
    Remedy{"the run ends: ", "All clients fail for the same reason, again and again.",
           "Mend what the text names, a learning rate, say, and begin another run. A start with a "
           "larger --rounds goes on with this one."},
    Remedy{"times in a row without an update that counts",
           "The client fails or is late again and again.",
           "Look at its log. Once it is mended, start its program anew or pardon it (Control, or "
           "fl-server pardon NAME); or wait, it is asked again by itself."},
    Remedy{"the deadline passed without", "These clients were slower than --deadline.",
           "Look at their timeline: training, upload, or no answer at all."},
    Remedy{"updates at the deadline; waiting for another",
           "Too few updates for the quorum had come when the time was over.",
           "Bring clients back, or start the server with a smaller --quorum."},
    Remedy{"--mode async:buffer=", "Fewer clients are here than a version takes updates of.",
           "Nothing, if more come. Else begin a run with a smaller buffer."},
    Remedy{"--target and --patience act", "Only evaluators end a run early, and none is here.",
           "Start one: fl-client --evaluate-only."},
    Remedy{"does not measure", "--metric or --target names what this client does not report.",
           "Name a metric that it measures, or let its trainer report that one."},
    Remedy{"upload postponed", "The disk had no room for an update.",
           "Make room where --state lies; the client sends it again by itself."},
    Remedy{"paused, the disk is full", "The disk with the state is full, or over its quota.",
           "Make room where --state lies; the server goes on by itself."},
    Remedy{
        "paused: too many files are open",
        "The process may open no more files, or another program holds the history's lock.",
        "Raise its limit (ulimit -Hn), or end the program that has history.sqlite open. The server "
        "goes on by itself."},
    Remedy{"given up: ", "A queued run could not begin, and nobody was there to correct it.",
           "Mend what the text names, and queue the run again: fl-server queue."},
    Remedy{"paused after a round", "The disk had no room for what the round leaves behind.",
           "Make room where --state lies; the server goes on by itself."},
    Remedy{"can't take part", "The client can't do what the run asks for.",
           "The text is the client's own; mend it there."},
    Remedy{"ignored an invalid evaluation", "An evaluator sent figures that can't be right.",
           "Look at its metric and its held-out data."},
    Remedy{"(--weight-cap)", "The client says that it has far more examples than the others.",
           "If that is right, nothing. If not, enrol it with --max-examples."},
    Remedy{"fl-server ends:", "The server stopped at an error that it must not retry.",
           "Mend what the text names, and start it again: it goes on where it was."},
    Remedy{"was revoked", "An operator took the client's right to take part.",
           "To let it in again, enrol it: fl-server enroll --name NAME."},
};

}  // namespace

std::span<const Remedy> remedies() { return table; }

const Remedy* find_remedy(std::string_view text) {
  for (const Remedy& each : table)
    if (text.find(each.part) != text.npos) return &each;
  return nullptr;
}

}  // namespace fl::server
