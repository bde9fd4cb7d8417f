// The names under which this project knows Asio, and nothing else.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace fl {

namespace net = boost::asio;

template <class T>
using Awaitable = net::awaitable<T>;

/// Makes `co_await` return the error code as the first of its values instead of throwing it.
inline constexpr auto as_result = net::as_tuple(net::use_awaitable);

/// A strand of its own over `executor`: what runs on it never runs twice at the same time.
using Strand = net::strand<net::any_io_executor>;

/// For net::co_spawn: what the coroutine throws goes on to io_context::run().
inline void rethrow(const std::exception_ptr& failure) {
  if (failure) std::rethrow_exception(failure);
}

/// Runs `task` on `executor`, and resumes here with its result or exception (CRAFT F11).
template <class Executor, class T>
Awaitable<T> on(Executor executor, Awaitable<T> task) {
  co_return co_await net::co_spawn(executor, std::move(task), net::use_awaitable);
}

}  // namespace fl
