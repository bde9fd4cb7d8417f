// SPDX-License-Identifier: Apache-2.0
// The parts of Beast that aren't templates, compiled once for all programs.
#include <boost/beast/src.hpp>
