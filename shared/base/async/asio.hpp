// SPDX-License-Identifier: Apache-2.0
// The names by which this project uses Asio: `net`, Awaitable, and a few small helpers.
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

/// Completion token: `co_await` returns the error code as the first value of a tuple instead of
/// throwing it.
inline constexpr auto as_result = net::as_tuple(net::use_awaitable);

/// Completion handler for net::co_spawn: an exception of the coroutine leaves io_context::run().
inline void rethrow(const std::exception_ptr& failure) {
  if (failure) std::rethrow_exception(failure);
}

/// Runs `task` on `executor`, then resumes on the caller's executor with its result or exception.
template <class Executor, class T>
Awaitable<T> on(Executor executor, Awaitable<T> task) {
  co_return co_await net::co_spawn(executor, std::move(task), net::use_awaitable);
}

}  // namespace fl
