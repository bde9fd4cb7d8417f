// SPDX-License-Identifier: Apache-2.0
#include "client/state/client_state.hpp"

#include "client/state/save_update.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/log.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

namespace fl::client {

Result<ClientState> ClientState::open(Files& files, std::filesystem::path folder, int threads) {
  ClientState state(files, std::move(folder), threads);
  FL_CHECK(state.load());
  return state;
}

Result<bool> ClientState::enter_run(const std::string& run_key) {
  if (run_key == folder_.run_key()) return false;
  drop_spares();
  // This was done at the end of the run too, but the client may have been killed there.
  if (const auto path = export_own_tensors(); !path) {
    const Errc code = path.error().code();
    // Damaged values can't be saved by trying again.
    if (code != Errc::corrupt && code != Errc::not_found) return path.error();
    log_warn("{}", path.error().message());
  }
  FL_CHECK(folder_.begin_run(run_key));
  return true;
}

Result<StoredValues> ClientState::residual(const Layout& layout) const {
  return folder_.open_values((pending() ? pending()->kept : folder_.kept()).residual,
                             layout.elements());
}

Result<StoredValues> ClientState::reference(const Layout& layout) const {
  return folder_.open_values(folder_.kept().reference, layout.elements());
}

Result<StoredValues> ClientState::local_values(std::uint64_t elements) const {
  return folder_.open_values(folder_.kept().local_values, elements);
}

Result<NewValues> ClientState::new_local_values(std::uint64_t elements) {
  if (elements == 0) return NewValues();
  return folder_.new_values("local-values", elements);
}

Result<std::filesystem::path> ClientState::export_own_tensors() const {
  const auto& own = folder_.own();
  if (!own || folder_.kept().local_values.empty()) return std::filesystem::path();
  const auto path = folder_.path() / fmt::format("personal-{}.safetensors", folder_.run_key());
  const auto write = [&]() -> Result<void> {
    FL_TRY(const Layout layout, Layout::make(own->tensors));
    FL_TRY(const auto kept, local_values(own->local_values));
    if (layout.elements() > kept.size())
      return Error(Errc::corrupt, fmt::format("the state has {} values, expected at least {}",
                                              kept.size(), layout.elements()));
    const Metadata about{
        {"run", folder_.run_key()}, {"model", own->model}, {"strategy", own->strategy}};
    FL_CHECK(
        replace_safetensors(files(), path, layout, kept.values().last(layout.elements()), about));
    return kept.check();
  };
  if (const auto written = write(); !written)
    return written.error().at("can't write this client's own tensors to " + path.string());
  return path;
}

Result<void> ClientState::save_update(const RunLayout& layout, StoredValues& update,
                                      const codec::Codec& codec, codec::CodeInputs inputs,
                                      wire::UploadBegin begin, NewValues local_values,
                                      const LocalRule* rule, codec::DeviceCopy device) {
  // The copy on the device must equal the vector that is coded.
  const bool is_changed = codec.error_feedback() || codec.is_delta() || layout.has_shared();
  FL_ASSERT(device.values == nullptr || !is_changed);
  FL_ASSERT(!pending());
  const bool may_be_coded_there = device.coder != nullptr && device.coder->is_there() &&
                                  codec.is_for_device(layout.all, device.values != nullptr);
  const auto save = [&]() -> Result<void> {
    UpdateSaving saving(folder_, scratch(), threads_, layout, update, codec, std::move(begin));
    FL_CHECK(saving.prepare());
    auto coded = saving.encode(inputs, device);
    if (!coded && coded.error().code() == Errc::corrupt && may_be_coded_there) {
      device.coder->give_up(coded.error().message());
      coded = saving.encode(inputs, {});
    }
    FL_CHECK(coded);
    return saving.finish(std::move(local_values), rule);
  };
  const auto saved = save();
  // Remove half-written files: on a full disk the next attempt needs their space.
  if (!saved) {
    drop_spares();
    [[maybe_unused]] const auto removed = folder_.remove_strays();
  }
  return saved;
}

Result<void> ClientState::settle_accepted() {
  if (!pending()) return {};
  FL_CHECK(folder_.settle(pending()->kept));
  failpoint("update.settled");
  return folder_.remove_strays();
}

Result<void> ClientState::settle_unused(const RunLayout& layout, bool keeps_mass) {
  if (!pending()) return {};
  auto settled = put_back_and_settle(layout, keeps_mass);
  if (!settled) [[maybe_unused]]
    const auto removed = folder_.remove_strays();
  return settled;
}

Result<void> ClientState::put_back_and_settle(const RunLayout& layout, bool keeps_mass) {
  client::KeptFiles kept = pending()->kept;
  kept.local_values = folder_.kept().local_values;
  kept.reference = folder_.kept().reference;
  kept.reference_task = folder_.kept().reference_task;
  const bool is_delta = pending()->begin.codec().starts_with(codec::delta_prefix);
  if (!keeps_mass && !is_delta) kept.residual.clear();
  if (!kept.residual.empty() && !is_delta) {
    FL_TRY(kept.residual, put_back(layout));
    FL_CHECK(folder_.sync());
  }
  FL_CHECK(folder_.settle(std::move(kept)));
  failpoint("update.put_back");
  return folder_.remove_strays();
}

/// Writes a new residual: the old one plus what the pending update has sent. Returns its name.
Result<std::string> ClientState::put_back(const RunLayout& layout) {
  FL_TRY(const auto before, residual(layout.all));
  FL_TRY(auto next, folder_.new_values("residual", layout.all.elements()));
  FL_TRY(const auto file, files().open(folder_.path() / pending()->file, OpenMode::read));
  codec::FileSource source(*file);
  FL_TRY(auto reader, codec::PayloadReader::open(source, pending()->begin.bytes(), layout.all));
  FL_CHECK(add_decoded(before.values(), reader, client::write_into(next.values), threads_));
  // Only gradients can be sent later. The residual of statistics and shared vectors is 0.
  FL_CHECK(client::fill_zeros(next.values, layout.parameter_elements));
  FL_CHECK(before.check());
  FL_CHECK(next.values.sync());
  return next.name;
}

}  // namespace fl::client
