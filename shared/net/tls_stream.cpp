// SPDX-License-Identifier: Apache-2.0
#include "shared/net/tls_stream.hpp"

#include "shared/net/tls_record.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/websocket/teardown.hpp>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <span>
#include <utility>

namespace fl {

namespace {

using tcp = net::ip::tcp;
using Steady = std::chrono::steady_clock;

/// One operation reads or writes at most this much before other work on the thread can run.
constexpr std::size_t turn_bytes = 256 << 10;
constexpr int turn_records = 64;
/// The most bytes that discard_rest() reads: more than the rest of a handshake.
constexpr std::size_t discarded_bytes_max = 64 << 10;

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

/// An OpenSSL error as Asio's ssl::stream reports it.
beast::error_code ssl_error_code(unsigned long reason) {
  return {static_cast<int>(reason), net::error::get_ssl_category()};
}

AnyHandler<beast::error_code, std::size_t> without_bytes(AnyHandler<beast::error_code> handler) {
  const auto executor = handler.get_executor();
  auto call = [handler = std::move(handler)](const beast::error_code& ec, std::size_t) mutable {
    handler(ec);
  };
  return {std::move(call), executor};
}

}  // namespace

struct TlsStream::Connection {
  /// The event that OpenSSL waits for before it can continue.
  enum class Want { nothing, input, output };

  Connection(tcp::socket given, net::ssl::context& context, std::string read_before)
      : socket(std::move(given)),
        deadline(socket.get_executor()),
        ssl(SSL_new(context.native_handle())),
        first(std::move(read_before)) {
    BIO* bio = ssl ? BIO_new(bio_method()) : nullptr;
    if (!bio) throw std::bad_alloc();
    BIO_set_data(bio, this);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl.get(), bio, bio);
    SSL_set_mode(ssl.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    // Otherwise one call runs for as long as records without data arrive, such as key updates.
    SSL_clear_mode(ssl.get(), SSL_MODE_AUTO_RETRY);
  }

  // ---- the socket as OpenSSL uses it; no call blocks

  static const BIO_METHOD* bio_method();
  static Connection& of(BIO* bio) { return *static_cast<Connection*>(BIO_get_data(bio)); }

  /// Reads a record's body and the next record's header in one call.
  int receive(std::span<char> into) {
    if (first_taken < first.size()) {
      const std::size_t taken = first.copy(into.data(), into.size(), first_taken);
      first_taken += taken;
      if (first_taken == first.size()) std::string().swap(first);
      return static_cast<int>(taken);
    }
    const std::size_t known = std::min(into.size(), ahead_size);
    std::memcpy(into.data(), ahead.data(), known);
    std::memmove(ahead.data(), ahead.data() + known, ahead_size - known);
    ahead_size -= known;
    into = into.subspan(known);
    if (into.empty()) return static_cast<int>(known);

    std::array<iovec, 2> parts{iovec{into.data(), into.size()}, iovec{ahead.data(), ahead.size()}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    ssize_t got = 0;
    do {
      got = ::recvmsg(socket.native_handle(), &message, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
      if (known > 0) return static_cast<int>(known);  // The next call will get the same error.
      return failed(got == 0 ? 0 : errno);
    }
    const std::size_t taken = std::min(static_cast<std::size_t>(got), into.size());
    ahead_size = static_cast<std::size_t>(got) - taken;
    return static_cast<int>(known + taken);
  }

  int transmit(std::span<const char> bytes) {
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (more_follows ? MSG_MORE : 0);
    ssize_t sent = 0;
    do {
      sent = ::send(socket.native_handle(), bytes.data(), bytes.size(), flags);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? failed(errno) : static_cast<int>(sent);
  }

  /// Handles a failed socket call: `error` is errno, or 0 for the end of the stream. "Would block"
  /// is no error.
  int failed(int error) {
    blocked = error == EAGAIN || error == EWOULDBLOCK;
    if (blocked) return -1;
    socket_error = error == 0 ? beast::error_code(net::error::eof)
                              : beast::error_code(error, boost::system::system_category());
    return error == 0 ? 0 : -1;
  }

  // ---- OpenSSL's calls

  /// Calls OpenSSL once. Sets `ec` on a permanent failure.
  template <class Call>
  Want perform(Call call, beast::error_code& ec) {
    ERR_clear_error();
    socket_error = {};
    const int result = call(ssl.get());
    const unsigned long reason = ERR_peek_error();
    switch (SSL_get_error(ssl.get(), result)) {
      case SSL_ERROR_NONE: return Want::nothing;
      case SSL_ERROR_WANT_READ: return Want::input;
      case SSL_ERROR_WANT_WRITE: return Want::output;
      case SSL_ERROR_ZERO_RETURN: ec = net::error::eof; break;
      case SSL_ERROR_SSL: ec = ssl_error_code(reason); break;
      default:
        ec = socket_error == net::error::eof ? beast::error_code(net::ssl::error::stream_truncated)
             : socket_error                  ? socket_error
                            : beast::error_code(net::ssl::error::unspecified_system_error);
    }
    ERR_clear_error();
    return Want::nothing;
  }

  /// Fills the buffers with data that has arrived. If no bytes were read, `ec` or the return value
  /// says why.
  Want read(const List<net::mutable_buffer>& buffers, std::size_t& bytes, beast::error_code& ec) {
    ec = std::exchange(read_error, {});
    if (ec) return Want::nothing;
    int records = 0;
    for (const net::mutable_buffer& buffer : buffers) {
      for (std::size_t at = 0; at < buffer.size();) {
        std::size_t got = 0;
        auto* into = static_cast<char*>(buffer.data()) + at;
        const auto call = [&](SSL* s) { return SSL_read_ex(s, into, buffer.size() - at, &got); };
        const Want want = perform(call, ec);
        at += got;
        bytes += got;
        // Report the data first; the next read reports the error.
        if (ec && bytes > 0) read_error = std::exchange(ec, {});
        if (got == 0) return bytes > 0 ? Want::nothing : want;
        if (bytes >= turn_bytes || ++records == turn_records) return Want::nothing;
      }
    }
    return Want::nothing;
  }

  /// Writes the buffers from offset `bytes` on and adds what was written to `bytes`. OpenSSL must
  /// get a record again unchanged if the socket did not take all of it, so this stops between two
  /// records only.
  Want write(const List<net::const_buffer>& buffers, std::size_t& bytes, beast::error_code& ec) {
    const std::size_t end = std::min(net::buffer_size(buffers), turn_bytes);
    while (bytes < end) {
      const net::const_buffer record = next_record(buffers, bytes);
      more_follows = bytes + record.size() < end;
      std::size_t put = 0;
      const auto call = [&](SSL* s) { return SSL_write_ex(s, record.data(), record.size(), &put); };
      const Want want = perform(call, ec);
      more_follows = false;
      bytes += put;
      if (want != Want::nothing || ec) return want;
    }
    return Want::nothing;
  }

  /// Returns the bytes of the next record, at `offset` of the buffers. If one buffer holds them
  /// all, they are not copied. Otherwise (a message header and its payload) they are copied
  /// together.
  static net::const_buffer next_record(const List<net::const_buffer>& buffers, std::size_t offset) {
    // One per thread, not per connection, because thousands of connections may be idle.
    thread_local std::vector<char> gathered;
    gathered.clear();
    for (const net::const_buffer& buffer : buffers) {
      const std::size_t skipped = std::min(offset, buffer.size());
      offset -= skipped;
      const net::const_buffer rest = buffer + skipped;
      if (rest.size() == 0) continue;
      const bool is_last = &buffer == &buffers.back();
      if (gathered.empty() && (is_last || rest.size() >= tls_record::payload_bytes_max))
        return net::buffer(rest, tls_record::payload_bytes_max);
      const auto* from = static_cast<const char*>(rest.data());
      gathered.insert(
          gathered.end(), from,
          from + std::min(rest.size(), tls_record::payload_bytes_max - gathered.size()));
      if (gathered.size() == tls_record::payload_bytes_max) break;
    }
    return net::buffer(gathered);
  }

  void close() {
    beast::error_code ignored;
    socket.close(ignored);
    deadline.cancel();
  }
  beast::error_code closed() const {
    if (timed_out) return beast::error::timeout;
    return socket.is_open() ? beast::error_code() : net::error::operation_aborted;
  }

  /// Calls step(connection, bytes, ec), and again whenever the socket is ready, until it returns
  /// Want::nothing. Then calls the handler on its executor, never from within the initiating
  /// function.
  template <class Step>
  static void run(std::shared_ptr<Connection> self, Step step, BytesHandler handler,
                  std::size_t bytes = 0, bool is_posted = false) {
    beast::error_code ec = self->closed();
    const Want want = ec ? Want::nothing : step(*self, bytes, ec);
    const auto executor = handler.get_executor();
    if (want != Want::nothing && !ec) {
      auto& socket = self->socket;
      const auto kind = want == Want::input ? tcp::socket::wait_read : tcp::socket::wait_write;
      auto ready = [self = std::move(self), step = std::move(step), handler = std::move(handler),
                    bytes](const beast::error_code& failure) mutable {
        if (failure) return handler(self->timed_out ? self->closed() : failure, bytes);
        run(std::move(self), std::move(step), std::move(handler), bytes, true);
      };
      socket.async_wait(kind, net::bind_executor(executor, std::move(ready)));
    } else if (is_posted) {
      handler(ec, bytes);
    } else {
      net::post(executor,
                [ec, bytes, handler = std::move(handler)]() mutable { handler(ec, bytes); });
    }
  }

  tcp::socket socket;
  net::steady_timer deadline;
  std::unique_ptr<SSL, FreeSsl> ssl;
  bool timed_out = false;
  std::string first;  // Bytes that were read before TLS began, until OpenSSL has taken them.
  std::size_t first_taken = 0;
  /// Bytes received beyond what OpenSSL asked for: the beginning of the next record.
  std::array<char, tls_record::head_bytes> ahead{};
  std::size_t ahead_size = 0;
  bool more_follows = false;
  bool blocked = false;
  beast::error_code socket_error;
  beast::error_code read_error;
};

const BIO_METHOD* TlsStream::Connection::bio_method() {
  const auto make = [] {
    BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    if (!method) throw std::bad_alloc();
    BIO_meth_set_read(method, [](BIO* bio, char* into, int size) {
      BIO_clear_retry_flags(bio);
      const int got = of(bio).receive({into, static_cast<std::size_t>(size)});
      if (got < 0 && of(bio).blocked) BIO_set_retry_read(bio);
      return got;
    });
    BIO_meth_set_write(method, [](BIO* bio, const char* bytes, int size) {
      BIO_clear_retry_flags(bio);
      const int sent = of(bio).transmit({bytes, static_cast<std::size_t>(size)});
      if (sent < 0 && of(bio).blocked) BIO_set_retry_write(bio);
      return sent;
    });
    BIO_meth_set_ctrl(
        method, [](BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1L : 0L; });
    return method;
  };
  static const BIO_METHOD* const method = make();
  return method;
}

TlsStream::TlsStream(const net::any_io_executor& executor, net::ssl::context& context)
    : TlsStream(tcp::socket(executor), context) {}

TlsStream::TlsStream(tcp::socket socket, net::ssl::context& context, std::string first)
    : connection_(std::make_shared<Connection>(std::move(socket), context, std::move(first))) {}

tcp::socket& TlsStream::socket() noexcept { return connection_->socket; }
SSL& TlsStream::ssl() noexcept { return *connection_->ssl; }

void TlsStream::expires_at(Steady::time_point deadline) {
  connection_->deadline.expires_at(deadline);
  connection_->deadline.async_wait(
      [alive = std::weak_ptr(connection_)](const beast::error_code& ec) {
        const auto connection = alive.lock();
        if (ec || !connection || connection->deadline.expiry() > Steady::now()) return;
        connection->timed_out = true;
        connection->close();
      });
}

void TlsStream::expires_after(Steady::duration duration) { expires_at(Steady::now() + duration); }

void TlsStream::expires_never() { connection_->deadline.expires_at(Steady::time_point::max()); }

Steady::time_point TlsStream::deadline() const { return connection_->deadline.expiry(); }

void TlsStream::close() { connection_->close(); }

Awaitable<beast::error_code> TlsStream::connect(std::vector<tcp::endpoint> endpoints) {
  const auto self = connection_;
  beast::error_code result = net::error::host_not_found;
  auto left = static_cast<Steady::duration::rep>(endpoints.size());
  for (const auto& endpoint : endpoints) {
    if (self->timed_out) break;
    beast::error_code ignored;
    self->socket.close(ignored);
    // An endpoint that does not answer (a firewall) must leave time for the others.
    const auto is_trying = std::make_shared<bool>(true);
    net::steady_timer share(self->socket.get_executor());
    if (left > 1 && self->deadline.expiry() > Steady::now()) {
      share.expires_after((self->deadline.expiry() - Steady::now()) / left);
      share.async_wait([self, is_trying](const beast::error_code& ec) {
        beast::error_code unused;
        if (!ec && *is_trying) self->socket.cancel(unused);
      });
    }
    --left;
    std::tie(result) = co_await self->socket.async_connect(endpoint, as_result);
    *is_trying = false;
    if (!result) co_return result;
    if (result == net::error::operation_aborted) result = beast::error::timeout;
  }
  co_return self->timed_out ? beast::error_code(beast::error::timeout) : result;
}

Awaitable<std::pair<beast::error_code, std::size_t>> TlsStream::read_plain(
    net::mutable_buffer room) {
  const auto self = connection_;
  auto [ec, bytes] = co_await self->socket.async_read_some(net::buffer(room), as_result);
  if (self->timed_out) ec = beast::error::timeout;
  co_return std::pair(ec, bytes);
}

Awaitable<beast::error_code> TlsStream::write_plain(std::string text) {
  const auto self = connection_;
  for (std::size_t written = 0; written < text.size();) {
    const net::const_buffer rest(text.data() + written, text.size() - written);
    const auto [ec, bytes] = co_await self->socket.async_write_some(rest, as_result);
    if (self->timed_out) co_return beast::error_code(beast::error::timeout);
    if (ec) co_return ec;
    written += bytes;
  }
  co_return beast::error_code();
}

Awaitable<void> TlsStream::discard_rest() {
  const auto self = connection_;
  beast::error_code ec;
  self->socket.shutdown(tcp::socket::shutdown_send, ec);
  std::array<char, 4096> room;
  std::size_t discarded = 0;
  while (!ec && discarded < discarded_bytes_max) {
    std::size_t bytes = 0;
    std::tie(ec, bytes) = co_await self->socket.async_read_some(net::buffer(room), as_result);
    discarded += bytes;
  }
}

void TlsStream::read_some(const List<net::mutable_buffer>& buffers, BytesHandler handler) {
  auto step = [buffers](Connection& self, std::size_t& bytes, beast::error_code& ec) {
    return self.read(buffers, bytes, ec);
  };
  Connection::run(connection_, std::move(step), std::move(handler));
}

void TlsStream::write_some(const List<net::const_buffer>& buffers, BytesHandler handler) {
  auto step = [buffers](Connection& self, std::size_t& bytes, beast::error_code& ec) {
    return self.write(buffers, bytes, ec);
  };
  Connection::run(connection_, std::move(step), std::move(handler));
}

void TlsStream::handshake(net::ssl::stream_base::handshake_type type, Handler handler) {
  const bool is_client = type == net::ssl::stream_base::client;
  auto step = [is_client](Connection& self, std::size_t&, beast::error_code& ec) {
    return self.perform(is_client ? SSL_connect : SSL_accept, ec);
  };
  Connection::run(connection_, std::move(step), without_bytes(std::move(handler)));
}

/// Completes when the peer has sent its close_notify too.
void TlsStream::shut_down(Handler handler) {
  auto step = [](Connection& self, std::size_t&, beast::error_code& ec) {
    const auto call = [](SSL* ssl) {
      const int result = SSL_shutdown(ssl);
      return result == 0 ? SSL_shutdown(ssl) : result;
    };
    const auto want = self.perform(call, ec);
    if (ec == net::error::eof) ec = {};
    return want;
  };
  Connection::run(connection_, std::move(step), without_bytes(std::move(handler)));
}

/// Always reports success. Otherwise Beast would report this error (usually: the peer is gone)
/// instead of the real cause of the end, such as a message that was too large.
void TlsStream::tear_down(beast::role_type role, Handler handler) {
  const auto executor = handler.get_executor();
  auto done = [self = connection_, handler = std::move(handler)](const beast::error_code&) mutable {
    handler({});
  };
  auto tcp = [&socket = connection_->socket, role, executor,
              done = std::move(done)](const beast::error_code&) mutable {
    beast::websocket::async_teardown(role, socket, net::bind_executor(executor, std::move(done)));
  };
  shut_down(Handler(net::bind_executor(executor, std::move(tcp)), executor));
}

}  // namespace fl
