#include "weights/named.h"

#include <algorithm>
#include <array>
#include <charconv>
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

  bool has(std::string_view name) const override { return holds(stored(name)) || in_stack(name); }
  Result<SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    const std::optional<Place> place = in_stack(name);
    if (!place || shape.size() != 2) return files_->get(stored(name), shape);
    return files_->get_part(place->stored, whole(*place, shape), place->index * shape[0] * shape[1], shape);
  }
  Result<SourceTensor> get_part(std::string_view name, std::span<const int64_t> whole, int64_t first,
                                std::span<const int64_t> shape) const override {
    return files_->get_part(stored(name), whole, first, shape);
  }
  Status check(std::string_view name, std::span<const int64_t> shape) const override {
    const std::optional<Place> place = in_stack(name);
    if (!place || shape.size() != 2) return files_->check(stored(name), shape);
    return files_->check(place->stored, whole(*place, shape));
  }
  Result<std::vector<int64_t>> integers(std::string_view name, int64_t count) const override {
    return files_->integers(stored(name), count);
  }
  Status check_integers(std::string_view name, int64_t count) const override {
    return files_->check_integers(stored(name), count);
  }
  DType dtype_of(std::string_view name) const override {
    const std::optional<Place> place = in_stack(name);
    return files_->dtype_of(place ? place->stored : stored(name));
  }
  std::optional<TensorInfo> info(std::string_view name) const override { return files_->info(stored(name)); }
  Result<SourceTensor> bytes(std::string_view name, uint64_t first, uint64_t count) const override {
    return files_->bytes(stored(name), first, count);
  }
  Result<std::optional<CodeFormat>> code_format(std::string_view name, std::span<const int64_t> shape) const override {
    if (!rules_.quantisation) return files_->code_format(stored(name), shape);
    VOLLEY_ASSIGN(const std::optional<Codes> codes, find(name, shape));
    return codes ? std::optional(codes->format) : std::nullopt;
  }
  Result<std::shared_ptr<const CodedMatrix>> coded(std::string_view name,
                                                   std::span<const int64_t> shape) const override {
    if (!rules_.quantisation) return files_->coded(stored(name), shape);
    VOLLEY_ASSIGN(const std::optional<Codes> codes, find(name, shape));
    VOLLEY_CHECK_MSG(codes.has_value(), std::string(name));
    return codes->open();
  }
  std::string quantisation() const override {
    return rules_.quantisation ? rules_.quantisation->name : files_->quantisation();
  }
  bool takes_memory() const override { return files_->takes_memory(); }
  // The 16-bit dtype of the other tensors decides nothing for a quantised model, whose matrices have fewer bits.
  DType main_dtype() const override {
    const DType dtype = files_->main_dtype();
    return !quantisation().empty() && dtype == DType::kF16 ? DType::kBF16 : dtype;
  }
  void done_with(const SourceTensor& tensor) const override { files_->done_with(tensor); }
  std::string origin() const override { return files_->origin(); }

  std::vector<std::string> names() const override {
    std::vector<std::string> names = files_->names();
    if (rules_.quantisation) keep_weights_alone(names);
    for (std::string& name : names) name = ours(std::move(name));
    unstack(names);
    std::erase_if(names, [this](const std::string& name) {
      return std::find(rules_.copies.begin(), rules_.copies.end(), name) != rules_.copies.end() || is_skipped(name);
    });
    return names;
  }

 private:
  // A tensor's place in a stack of the files.
  struct Place {
    std::string stored;
    int64_t count = 0, parts = 0;  // the stack's name
    int64_t index = 0;             // index among its count * parts
  };

  Result<std::optional<Codes>> find(std::string_view name, std::span<const int64_t> shape) const {
    constexpr std::string_view kWeight = ".weight";
    if (quantisation().empty() || shape.size() != 2) return std::optional<Codes>();
    if (const std::optional<Place> place = in_stack(name)) {
      return find_codes(files_, *rules_.quantisation,
                        {place->stored, true, place->count, place->parts, place->index, shape[0], shape[1]});
    }
    if (!name.ends_with(kWeight)) return std::optional<Codes>();
    std::string module = stored(name);
    module.erase(module.size() - kWeight.size());
    return find_codes(files_, *rules_.quantisation, {std::move(module), false, 1, 1, 0, shape[0], shape[1]});
  }

  // Whether the files have that tensor, or codes for it.
  bool holds(const std::string& full) const {
    return files_->has(full) || (rules_.quantisation && has_codes(*files_, full));
  }

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
      if (!holds(whole)) continue;
      const auto parts = static_cast<int64_t>(stack.parts.size());
      return Place{std::move(whole), stack.count, parts, n * parts + (part - stack.parts.begin())};
    }
    return std::nullopt;
  }

  // The shape of the stack whose parts have `shape`.
  static std::array<int64_t, 3> whole(const Place& place, std::span<const int64_t> shape) {
    return {place.count, place.parts * shape[0], shape[1]};
  }

  bool is_skipped(const std::string& name) const {
    return std::any_of(rules_.skipped.begin(), rules_.skipped.end(),
                       [&](const NameRules::Skipped& part) { return name.starts_with(part.begins); });
  }

  // Replaces a stack's name by those of its parts.
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

  std::string stored(std::string_view ours) const {
    std::string name(ours);
    for (const NameRules::Alias& alias : rules_.inner) name = replaced(std::move(name), alias.ours, alias.stored);
    for (const std::string& prefix : rules_.prefixes) {
      std::string full = prefix + name;
      if (holds(full)) return full;
      for (const NameRules::Alias& alias : rules_.aliases) {
        if (!name.starts_with(alias.ours)) continue;
        full = prefix + alias.stored + name.substr(alias.ours.size());
        if (holds(full)) return full;
      }
    }
    return rules_.prefixes.front() + name;  // get() will report it missing, by the usual name
  }

  static std::string replaced(std::string name, const std::string& from, const std::string& to) {
    const size_t at = name.find(from);
    return at == std::string::npos ? name : name.replace(at, from.size(), to);
  }

  std::string ours(std::string name) const {
    for (const std::string& prefix : rules_.prefixes) {
      if (prefix.empty() || !name.starts_with(prefix)) continue;
      name.erase(0, prefix.size());
      break;
    }
    for (auto alias = rules_.inner.rbegin(); alias != rules_.inner.rend(); ++alias) {
      name = replaced(std::move(name), alias->stored, alias->ours);
    }
    for (const NameRules::Alias& alias : rules_.aliases) {
      if (name.starts_with(alias.stored)) return alias.ours + name.substr(alias.stored.size());
    }
    return name;
  }

  std::shared_ptr<const Checkpoint> files_;
  NameRules rules_;
};

}  // namespace

std::shared_ptr<const Checkpoint> with_names(std::shared_ptr<const Checkpoint> files, NameRules rules) {
  return std::make_shared<NamedCheckpoint>(std::move(files), std::move(rules));
}

}  // namespace volley::weights
