// SPDX-License-Identifier: Apache-2.0
// The sub-command about member lists (shared/secure/member_list.hpp). It needs no server and no
// state: lists are signed where the server is not.
#pragma once

#include "server/app/command.hpp"

namespace fl::server {

[[nodiscard]] Command members_command();

}  // namespace fl::server
