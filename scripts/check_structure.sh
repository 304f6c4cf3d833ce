#!/usr/bin/env bash
# Fails where code names what it must not know: a model family outside src/families (names of GGUF files, text formats of
# serve and text, and drafters' files aside), the drafting algorithm or the fields of its files outside its folder and the registry
# (tests may name both); the build's CUDA outside src/ops/kernels.h; the calling thread's GPU outside src/device.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
# refuse WHAT PATTERN EXCEPT: prints the lines of src that match PATTERN in files that do not match EXCEPT.
refuse() {
  local found
  found=$(grep -rniE "$2" src --include='*.cc' --include='*.h' --include='*.cu' --include='*.cuh' |
    grep -vE "^src/($3)|_test\.cc:") || true
  if [ -n "$found" ]; then
    status=1
    printf 'check_structure: %s\n%s\n' "$1" "$found" >&2
  fi
}

# llama3 is what config.json calls one scaling of rotary frequencies, whatever the family.
refuse 'a model family is named outside src/families:' \
  'qwen|llama([^3]|3[^_ ,.:;()])|mistral|gpt.?oss|deepseek|kimi|glm|minimax' 'families/|gguf/|serve/|text/|decode/(dflash|mtp)/|decode/proposers\.cc:|base/environment.*ollama'
refuse 'the drafting algorithm, or a field of its files, is named outside src/decode/dflash, src/decode/proposers.cc and src/gguf:' \
  'dflash|mask_token_id|target_layer_ids|aux_hidden_state|draft_vocab' 'decode/(dflash|mtp)/|decode/proposers\.cc:|gguf/'
# A table of functions per device says what there is (src/ops/kernels.h). VOLLEY_CUDA_SM90A is about machine code.
refuse 'whether this build has CUDA is asked outside src/ops/kernels.h:' \
  '^ *#.*VOLLEY_CUDA([^_]|$)' 'ops/kernels\.h:'
refuse "the calling thread's GPU is asked for outside src/device: the stream knows its own:" \
  'cudaGetDevice\b|cudaDeviceGetAttribute|cudaGetDeviceProperties' 'device/cuda/'
# A third kind of block must not be a search through the engine: it asks for a layer's facts (src/model/spec.h).
refuse 'which block a layer has is asked outside src/model/spec, families and drafters:' \
  '(get_if|holds_alternative|std::get)<(model::)?(Attention|Latent|ShortConv|GatedDelta|Dense|Experts)>|(decoder|spec_?|target|shard)(\.|->)(attention|latent|delta|experts)\([a-z]' \
  'model/spec\.|families/|decode/(dflash|mtp)/'
exit "$status"
