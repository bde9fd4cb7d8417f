// The names under which this project knows Asio, and nothing else.
#pragma once

#include <boost/asio/any_io_executor.hpp>
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

/// A strand of its own over `executor`: what runs on it never runs twice at the same time.
using Strand = net::strand<net::any_io_executor>;

/// Runs `task` on `executor`, and resumes here with its result or exception (CRAFT F11).
template <class Executor, class T>
Awaitable<T> on(Executor executor, Awaitable<T> task) {
  co_return co_await net::co_spawn(executor, std::move(task), net::use_awaitable);
}

}  // namespace fl
