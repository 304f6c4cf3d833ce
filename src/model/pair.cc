#include <algorithm>

#include "model/spec.h"

namespace volley::model {
namespace {

Status check_equal(const char* what, int32_t target, int32_t draft) {
  if (target == draft) return {};
  return failed_precondition(std::string("The drafter does not fit the target: ") + what + " is " +
                             std::to_string(draft) + " in the drafter's config.json and " + std::to_string(target) +
                             " in the target's. Use a drafter that was trained for this target.");
}

}  // namespace

Status check_pair(const DecoderSpec& target, const DraftSpec& draft) {
  const int32_t layers = static_cast<int32_t>(target.layers.size());
  VOLLEY_RETURN_IF_ERROR(check_equal("hidden_size", target.hidden, draft.decoder.hidden));
  VOLLEY_RETURN_IF_ERROR(check_equal("vocab_size", target.vocab, draft.decoder.vocab));
  VOLLEY_RETURN_IF_ERROR(
      check_equal("the target's number of layers (num_target_layers)", layers, draft.num_target_layers));
  for (size_t i = 0; i < draft.target_layers.size(); ++i) {
    const int32_t id = draft.target_layers[i];
    if (id < 0 || id >= layers) {
      return failed_precondition("The drafter reads layer " + std::to_string(id) +
                                 " of the target (target_layer_ids), but the target has layers 0 to " +
                                 std::to_string(layers - 1) + ". Use a drafter that was trained for this target.");
    }
    if (std::count(draft.target_layers.begin(), draft.target_layers.end(), id) > 1) {
      return failed_precondition("The drafter's target_layer_ids name layer " + std::to_string(id) +
                                 " twice. Use a drafter whose config.json is right.");
    }
  }
  if (draft.mask_token < 0 || draft.mask_token >= target.vocab) {
    return failed_precondition("The drafter's mask_token_id is " + std::to_string(draft.mask_token) +
                               ", but the target's vocabulary ends at " + std::to_string(target.vocab - 1) +
                               ". Use a drafter that was trained for this target.");
  }
  return {};
}

Result<int32_t> resolve_block_size(const DraftSpec& draft, int32_t requested, std::vector<std::string>* warnings) {
  if (requested == 0) return draft.block_size;
  if (requested < 2) {
    return invalid_argument("The block size is " + std::to_string(requested) +
                            ", but a block holds one known token and at least one to draft: give 2 or more, or turn "
                            "speculation off.");
  }
  if (requested > draft.block_size) {
    warnings->push_back("The block size is " + std::to_string(requested) + ", but the drafter was trained for " +
                        std::to_string(draft.block_size) + ": tokens past that are seldom accepted.");
  }
  return requested;
}

}  // namespace volley::model
