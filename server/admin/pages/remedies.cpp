// SPDX-License-Identifier: Apache-2.0
#include "server/admin/pages/remedies.hpp"

#include <array>

namespace fl::server {

namespace {

// The first row that fits counts, so special rows stand before general ones. A remedy says where to
// go and what to type: its reader may see the page for the first time.
constexpr std::array table{
    Remedy{" says: ", "The client's own words: its training or measuring failed.",
           "Read the log of that client, on its own machine: the terminal of fl-client, or "
           "journalctl -u 'fl-client*'. What has failed there is put right there; it is asked "
           "again by itself."},
    Remedy{" more within ",
           "The same thing happens again and again: from here on it was counted only.",
           "The events before this one, with the same words, say what it is: write a word of them"
           " into 'Text contains'."},
    Remedy{"has displaced its own session", "Two programs connect with one identity.",
           "End one of them. A copied --state folder is no second client: make a token with "
           "another name (fl-server enroll --name NAME), and start the second with --join TOKEN "
           "and an empty --state folder."},
    Remedy{"was not let in", "Its certificate is revoked, replaced, or not of this federation.",
           "If it should take part, make a token (fl-server enroll --name NAME; for a revoked "
           "client with another name) and start it with --join TOKEN and an empty --state folder."},
    Remedy{"an enrolment was refused",
           "Somebody used a join token that is used up, too old, or not of this server.",
           "Make a new one with fl-server enroll --name NAME, and start the client with --join "
           "TOKEN. Many of these in a row are an attack on the port, or a script that tries for "
           "ever."},
    Remedy{"has other tensors than the client's", "Its model is another than the run's.",
           "Start that client with the --model that the view Runs shows for this run, or queue a "
           "run of its model: fl-server queue --model MODEL."},
    Remedy{"was turned away", "The client does not fit the run, or what it was enrolled for.",
           "What stands behind 'was turned away' is put right at that client, by the flags that "
           "it is started with; or let it join again with another token: fl-server enroll --name "
           "NAME."},
    Remedy{"ended with an error", "Its program has ended: what it says there must be put right.",
           "Put it right on that client's machine, and start its fl-client again. Its own log has "
           "more: in its terminal, or journalctl -u 'fl-client*'."},
    Remedy{"the session ended", "The client sent what the protocol does not allow.",
           "Install the same release at both ends: the view Fleet shows each member's program. A "
           "program that nobody knows may be an attack: fl-server revoke NAME."},
    Remedy{"was enrolled again with a new key",
           "Somebody has joined by this name with another key.",
           "End the program that still runs with the old --state folder. If nobody of yours has "
           "joined, revoke the name: fl-server revoke NAME."},
    Remedy{"update refused",
           "The update failed a check: its size, its numbers, or its norm beside the others'.",
           "Its update stays out of the model. Look at that client's data and the run's settings:"
           " a smaller --lr helps where numbers grow; --norm-limit says how large a norm may be."},
    Remedy{"what most of them say counts", "Evaluators measure this metric in two ways.",
           "Have all of them name the metric with the same direction and way to combine it, and "
           "start those again that differ. The run goes on meanwhile."},
    Remedy{"says that its training loss is",
           "Its training diverges, or it claims what it did not measure.",
           "Look at that client's data, and try a smaller --lr. If it should not be so, revoke "
           "it: fl-server revoke NAME."},
    Remedy{"cosines are not known", "An update could not be read again when its round closed.",
           "Nothing needs to be done for the model, whose sums had it. Look at the disk where "
           "--state lies."},
    Remedy{"to be repeated", "The bytes that came were not those that were announced.",
           "Nothing needs to be done: the client sends it again. If it happens often, look at "
           "that machine's disk and memory."},
    Remedy{"its upload sends", "The link is slower than the round allows.",
           "Start the server again with a longer --deadline, or with fewer bytes: --codec auto "
           "chooses by each link."},
    Remedy{"the run ends: ", "All clients fail for the same reason, again and again.",
           "Begin another run without the cause that the text names, with a smaller --lr, say: "
           "fl-server queue. A start with a larger --rounds goes on with this one."},
    Remedy{"times in a row without an update that counts",
           "The client fails or is late again and again.",
           "The view Round says of each round why; the client's own log, on its machine, says "
           "more. Once it is put right, start its program anew or pardon it (in the view "
           "Control, or fl-server pardon NAME), and it is asked at once. Else it is asked again "
           "after the pause."},
    Remedy{"the deadline passed without", "These clients were slower than --deadline.",
           "The view Round shows what their time went into: training, upload, or no answer at "
           "all. Start the server again with a longer --deadline, or with less work in a round "
           "(--local-epochs, --local-seconds)."},
    Remedy{"updates at the deadline; waiting for another",
           "Too few updates had come when the time was over.",
           "Bring clients back, or start the server again with fewer --min-clients: a round "
           "closes with so many updates."},
    Remedy{"--mode async:buffer=", "Fewer clients are here than a version takes updates of.",
           "Nothing needs to be done if more come. Else queue a run with a smaller buffer: fl-"
           "server queue --mode async:buffer=K."},
    Remedy{"--target and --patience act", "Only evaluators end a run early, and none is here.",
           "Start one: make a token with fl-server enroll --name NAME --role evaluator, and start"
           " fl-client --join TOKEN --evaluate-only with data of its own."},
    Remedy{"does not measure", "--metric or --target names what this client does not report.",
           "Start the server again with a --metric that the text names, or let the client's "
           "trainer report that one."},
    Remedy{"upload postponed", "The disk had no room for an update.",
           "Make room where --state lies; the client sends it again by itself."},
    Remedy{"paused, the disk is full", "The disk with the state is full, or over its quota.",
           "Make room where --state lies; the server goes on by itself."},
    Remedy{"paused: too many files are open",
           "The process may open no more files, or another program holds the history's lock.",
           "Raise the server's limit of open files (ulimit -n; LimitNOFILE= of its service), or "
           "end the program that has history.sqlite open. The server goes on by itself."},
    Remedy{"given up: ", "A queued run could not begin, and nobody was there to correct it.",
           "Queue the run again without what the text names: fl-server queue, or the view "
           "Control."},
    Remedy{"paused after a round", "The disk had no room for what the round leaves behind.",
           "Make room where --state lies; the server goes on by itself."},
    Remedy{"can't take part", "The client can't do what the run asks for.",
           "The client says behind the colon what it lacks: start it with a model or data that "
           "fit, or queue a run that it can train (fl-server queue). Its own log, on its machine,"
           " says more; with --stay it waits for the next run."},
    Remedy{"ignored an invalid evaluation", "An evaluator sent figures that can't be right.",
           "Look at what that evaluator measures, and at its held-out data. The other evaluators "
           "count as before."},
    Remedy{"(--weight-cap)", "The client says that it has far more examples than the others.",
           "Nothing needs to be done if that is right. If not, make it a token with a limit (fl-"
           "server enroll --name NAME --max-examples N), and let it join again with it."},
    Remedy{"fl-server ends:", "The server stopped at an error that it must not retry.",
           "Put right what the text names, and start the server again with the same --state: it "
           "goes on where it was."},
    Remedy{"a message of the masked round is refused",
           "The client sent what no member may send: it is broken, or lies.",
           "Install the same release there. If it happens again, ask that site, or revoke it: "
           "fl-server revoke NAME."},
    Remedy{"the masked sum waits for", "Members that have begun to open a sum do not answer.",
           "Bring these clients back: nobody else can take their place any more."},
    Remedy{"does not open the masked sum",
           "The client was in the sum, and has lost what opens it or refuses to say it.",
           "Nothing needs to be done: the others make up for it where they are enough. Its log "
           "says why."},
    Remedy{"has sealed what others can't open",
           "A member lies in its shares, or those that can't open them do.",
           "The round is made again without it. Ask these sites, or revoke the one that lies: "
           "fl-server revoke NAME."},
    Remedy{"can't be opened without",
           "Too many members that have signed the list of the sum have lost what opens it, or were "
           "revoked.",
           "Members keep their updates. Ask the sites that the text names, and queue the run "
           "again: fl-server queue."},
    Remedy{"to add up masked updates has failed", "Too few members were there to the end.",
           "Nothing needs to be done while others follow: members keep their updates. Else bring "
           "the missing clients back; --secure-aggregation on:step-seconds=N waits longer."},
    Remedy{"has revealed a wrong share", "The client lies about a secret that it was entrusted.",
           "The round has done without it. Ask that site, or revoke it: fl-server revoke NAME."},
    Remedy{"too many shares are wrong or missing", "More members lie than the others make up for.",
           "Ask the sites that the text names, and queue the run again: fl-server queue."},
    Remedy{"was revoked",
           "An operator took the client's right to take part. A name that is revoked stays so.",
           "To let its owner in again, make a token with another name: fl-server enroll --name "
           "NAME."}};

}  // namespace

std::span<const Remedy> remedies() { return table; }

const Remedy* find_remedy(std::string_view text) {
  for (const Remedy& each : table)
    if (text.find(each.part) != text.npos) return &each;
  return nullptr;
}

}  // namespace fl::server
