// SPDX-License-Identifier: Apache-2.0
// One client's session on the server: the handshake, then one coroutine that answers what the
// client says, and one that sends what its host posts. It carries messages, and the host decides:
// it runs on its link's strand, and goes to the host's strand for every decision but two: it puts
// an upload off at once when the disk is full, and ends itself when an upload comes too slowly. It
// tells its host of both.
#pragma once

#include "server/host/session_host.hpp"
#include "server/net/member_quota.hpp"
#include "shared/base/async/mailbox.hpp"
#include "shared/wire/link.hpp"

#include <functional>
#include <memory>
#include <string>

namespace fl::server {

/// Issues a new certificate to a client whose session proved the old one. Any strand.
using Renewer = std::function<Awaitable<Result<wire::Renewed>>(std::string csr_pem)>;

class Session : public Peer, public std::enable_shared_from_this<Session> {
 public:
  /// `name` and `serial` are what the client's certificate says; without a certificate (in fl-sim)
  /// the name is taken as it is. `authorities`: SHA-256 of the trusted ones, for the Welcome.
  Session(std::shared_ptr<Link> link, std::string name, std::shared_ptr<SessionHost> host,
          std::string serial = "", Renewer renewer = nullptr, std::string authorities = "");

  /// Serves the client from its Hello to the end of the link. Spawn it on the link's executor.
  Awaitable<void> run();
  /// Whether the session ended by what the client sent: it broke the protocol or a limit. Known
  /// when run() has returned.
  [[nodiscard]] bool is_at_fault() const { return is_at_fault_; }

  const Facts& facts() const override { return facts_; }
  void post(wire::Header header) override;
  void dismiss(wire::Bye::Cause cause, const std::string& reason) override;
  std::uint64_t bytes_up() const override { return link_->bytes_received(); }
  std::uint64_t bytes_down() const override { return link_->bytes_sent(); }

 private:
  struct Event;  // An event that happens once; a coroutine can wait for it.
  struct MessageRow;

  Awaitable<Result<void>> shake_hands();
  Awaitable<Result<Message>> receive_within(Duration limit);
  /// Serves the client until it leaves. Returns its error if that is why, else "".
  Awaitable<Result<std::string>> serve();
  Awaitable<bool> await_last_bye();
  Awaitable<Result<void>> send_model(Message message);
  Awaitable<Result<void>> begin_upload(Message message);
  Awaitable<Result<void>> take_chunk(Message message);
  Awaitable<Result<void>> finish_upload();
  Awaitable<void> watch_pace(std::shared_ptr<Session> self, std::shared_ptr<Event> done,
                             TaskId task, double bytes_per_s_min);
  Awaitable<Result<void>> take_evaluation(Message message);
  Awaitable<Result<void>> take_failure(Message message);
  Awaitable<Result<void>> take_secure(Message message);
  Awaitable<Result<void>> renew(Message message);
  Awaitable<Result<void>> send(wire::Header header);
  Awaitable<void> send_posted(std::shared_ptr<Session> self);
  Awaitable<void> say_bye(wire::Bye::Cause cause, std::string reason);
  Awaitable<void> say_last(wire::Header bye);
  void end_transfer(TransferWay way, std::size_t chunk_bytes_max);
  void end_upload();

  std::shared_ptr<Link> link_;
  std::shared_ptr<SessionHost> host_;
  Renewer renewer_;
  std::string authorities_;
  Facts facts_;
  Mailbox<wire::Header> posted_;
  bool is_over_ = false;  // The peer was told Bye FINISHED; its own Bye is awaited.
  bool is_at_fault_ = false;
  bool has_ended_ = false;  // Nothing more is read from the peer.
  Signal ended_;
  struct Uploading {
    /// Has an upload while one is under way. An upload that was put off has only its verdict.
    UploadGrant grant;
    /// Payload bytes that may still arrive of an upload that got its verdict before its end.
    std::uint64_t tail_bytes = 0;
    std::shared_ptr<Event> done;  // Ends the watch over the upload under way.
  };
  Uploading up_;
  MemberQuota quota_;
  std::string told_failure_;  // The reason of the newest Failed.
};

}  // namespace fl::server
