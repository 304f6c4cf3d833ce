#include "weights/named.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <mutex>
#include <optional>

#include "base/check.h"

namespace volley::weights {
namespace {

class NamedCheckpoint final : public Checkpoint {
 public:
  NamedCheckpoint(std::shared_ptr<const Checkpoint> files, NameRules rules)
      : files_(std::move(files)), rules_(std::move(rules)) {
    VOLLEY_CHECK(!rules_.prefixes.empty());
  }

  bool has(std::string_view name) const override { return files_->has(stored(name)) || in_stack(name); }
  Result<SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    if (const std::optional<Place> place = in_stack(name); place && shape.size() == 2) return get(*place, shape);
    return files_->get(stored(name), shape);
  }
  DType dtype_of(std::string_view name) const override {
    const std::optional<Place> place = in_stack(name);
    return files_->dtype_of(place ? place->stored : stored(name));
  }
  DType main_dtype() const override { return files_->main_dtype(); }
  void done_with(const SourceTensor& tensor) const override { files_->done_with(tensor); }
  std::string origin() const override { return files_->origin(); }

  std::vector<std::string> names() const override {
    std::vector<std::string> names = files_->names();
    for (std::string& name : names) name = ours(std::move(name));
    unstack(names);
    std::erase_if(names, [this](const std::string& name) {
      return std::find(rules_.copies.begin(), rules_.copies.end(), name) != rules_.copies.end();
    });
    return names;
  }

 private:
  // Where a tensor lies in a stack that the files have.
  struct Place {
    std::string stored;
    int64_t count = 0, parts = 0;  // of the stack
    int64_t index = 0;             // among its count * parts
  };

  std::optional<Place> in_stack(std::string_view name) const {
    for (const NameRules::Stack& stack : rules_.stacks) {
      const size_t folder = name.find(stack.folder);
      if (folder == std::string_view::npos) continue;
      const size_t begin = folder + stack.folder.size();
      int64_t n = -1;
      const auto [end, error] = std::from_chars(name.data() + begin, name.data() + name.size(), n);
      if (error != std::errc() || n < 0 || n >= stack.count) continue;
      const auto ends = [&](const std::string& part) { return name.substr(end - name.data()) == "." + part; };
      const auto part = std::find_if(stack.parts.begin(), stack.parts.end(), ends);
      if (part == stack.parts.end()) continue;
      std::string whole = stored(std::string(name.substr(0, begin)) + stack.stored);
      if (!files_->has(whole)) continue;
      const auto parts = static_cast<int64_t>(stack.parts.size());
      return Place{std::move(whole), stack.count, parts, n * parts + (part - stack.parts.begin())};
    }
    return std::nullopt;
  }

  Result<SourceTensor> get(const Place& place, std::span<const int64_t> shape) const {
    const std::array<int64_t, 3> whole = {place.count, place.parts * shape[0], shape[1]};
    VOLLEY_ASSIGN(SourceTensor tensor, get_whole(place.stored, whole));
    tensor.data += static_cast<size_t>(place.index * shape[0] * shape[1]) * dtype_size(tensor.dtype);
    tensor.shape.assign(shape.begin(), shape.end());
    return tensor;
  }

  // Parts are asked for one after the other, and files that are not mapped would read the whole for each.
  Result<SourceTensor> get_whole(const std::string& name, std::span<const int64_t> shape) const {
    std::lock_guard lock(mutex_);
    if (name != whole_name_ || !std::equal(shape.begin(), shape.end(), whole_.shape.begin(), whole_.shape.end())) {
      whole_name_.clear();
      VOLLEY_ASSIGN(whole_, files_->get(name, shape));
      whole_name_ = name;
    }
    return whole_;
  }

  // A stack's name becomes those of its parts.
  void unstack(std::vector<std::string>& names) const {
    std::vector<std::string> all;
    for (std::string& name : names) {
      const auto is_whole = [&](const NameRules::Stack& stack) { return name.ends_with(stack.folder + stack.stored); };
      const auto stack = std::find_if(rules_.stacks.begin(), rules_.stacks.end(), is_whole);
      if (stack == rules_.stacks.end()) {
        all.push_back(std::move(name));
        continue;
      }
      name.erase(name.size() - stack->stored.size());
      for (int64_t n = 0; n < stack->count; ++n) {
        for (const std::string& part : stack->parts) all.push_back(name + std::to_string(n) + "." + part);
      }
    }
    names = std::move(all);
  }

  std::string stored(std::string_view name) const {
    for (const std::string& prefix : rules_.prefixes) {
      std::string full = prefix + std::string(name);
      if (files_->has(full)) return full;
      for (const NameRules::Alias& alias : rules_.aliases) {
        if (!name.starts_with(alias.ours)) continue;
        full = prefix + alias.stored + std::string(name.substr(alias.ours.size()));
        if (files_->has(full)) return full;
      }
    }
    return rules_.prefixes.front() + std::string(name);  // get() will say that it is missing, by the usual name
  }

  std::string ours(std::string name) const {
    for (const std::string& prefix : rules_.prefixes) {
      if (prefix.empty() || !name.starts_with(prefix)) continue;
      name.erase(0, prefix.size());
      break;
    }
    for (const NameRules::Alias& alias : rules_.aliases) {
      if (name.starts_with(alias.stored)) return alias.ours + name.substr(alias.stored.size());
    }
    return name;
  }

  std::shared_ptr<const Checkpoint> files_;
  NameRules rules_;
  mutable std::mutex mutex_;
  mutable std::string whole_name_;  // of the stack that was asked for last; guarded by mutex_, and so is the tensor
  mutable SourceTensor whole_;
};

}  // namespace

std::shared_ptr<const Checkpoint> with_names(std::shared_ptr<const Checkpoint> files, NameRules rules) {
  return std::make_shared<NamedCheckpoint>(std::move(files), std::move(rules));
}

}  // namespace volley::weights
