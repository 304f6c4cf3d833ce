// The environment variables that Volley reads and writes, all of them, here.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace volley {

// VOLLEY_DISABLE_BF16=1: do not use the CPU's bf16 dot product, even if it has one (tests of the other path).
bool env_disable_bf16();

// NO_COLOR (no-color.org): if set and not empty, print no colours, even on a terminal.
bool env_no_color();

// XDG_CACHE_HOME (freedesktop.org's base directories), else $HOME/.cache. Empty if neither is an absolute path.
std::string env_cache_home();

// The download folder of Hugging Face's tools: HF_HUB_CACHE, else HF_HOME/hub, else huggingface/hub below
// env_cache_home(). Empty if none is set.
std::string env_hf_hub_cache();

// Ollama's folder of models: OLLAMA_MODELS, else .ollama/models below $HOME. Empty if neither is set.
std::string env_ollama_models();

// LM Studio's folders of models below $HOME, today's and that of older versions. Empty without $HOME.
std::vector<std::string> env_lm_studio_models();

// HF_ENDPOINT without its last '/', else https://huggingface.co.
std::string env_hf_endpoint();

// HF_TOKEN, else the file that `hf auth login` writes. Empty: none. Secret: not for logs or messages.
std::string env_hf_token();

// HF_HUB_OFFLINE: nothing is to be downloaded.
bool env_hf_hub_offline();

// XDG_STATE_HOME, else $HOME/.local/state. Empty if neither is an absolute path.
std::string env_state_home();

// VOLLEY_API_KEYS: the keys that clients of `volley serve` may use, separated by commas. No value: not set. Secret: not
// for logs or messages.
std::optional<std::string> env_api_keys();

// CUDA_VISIBLE_DEVICES: the GPUs that the driver shows this process. No value: not set.
std::optional<std::string> env_cuda_visible_devices();

// Writes CUDA_MODULE_LOADING=EAGER: the driver then loads all kernels before the first one runs. For GPUs whose kernels
// wait for one another's: otherwise the driver loads each kernel at its first launch, and may then wait for kernels
// under way while holding a lock that other threads' launches need. Call before the first use of CUDA in the process;
// later calls have no effect.
void load_gpu_code_early();

// Writes NCCL_NVLS_ENABLE=0 and NCCL_GRAPH_REGISTER=0, unless they are set. NCCL then uses no NVLink multicast, whose
// faults reach beyond a process, and allocates no memory for recorded work beyond the plan. Call before NCCL is loaded.
void set_nccl_defaults();

// Every variable whose name begins with VOLLEY_, with its value, sorted: options of the program (apps/options.h). Some
// are secret: not for logs or messages.
std::vector<std::pair<std::string, std::string>> env_volley_variables();

}  // namespace volley
