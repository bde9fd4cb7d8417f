// SPDX-License-Identifier: Apache-2.0
// The parts of Asio that aren't templates, compiled once for all programs.
#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
