// The environment variables that Volley reads and writes, all of them, here.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace volley {

// VOLLEY_DISABLE_BF16=1: do not use the CPU's bf16 dot product, even where there is one (tests of the other path).
bool env_disable_bf16();

// NO_COLOR (no-color.org): set and not empty: print no colours, even on a terminal.
bool env_no_color();

// XDG_CACHE_HOME (freedesktop.org's base directories), else $HOME/.cache. Empty: neither is an absolute path.
std::string env_cache_home();

// Where Hugging Face's tools keep what they download: HF_HUB_CACHE, else HF_HOME/hub, else huggingface/hub below
// env_cache_home(). Empty: nowhere.
std::string env_hf_hub_cache();

// XDG_STATE_HOME, else $HOME/.local/state. Empty: neither is an absolute path.
std::string env_state_home();

// VOLLEY_API_KEYS: keys that clients of `volley serve` must send one of, separated by commas. Nothing: not set. Secret:
// not for logs or messages.
std::optional<std::string> env_api_keys();

// CUDA_VISIBLE_DEVICES: the GPUs that the driver shows this process. Nothing: not set.
std::optional<std::string> env_cuda_visible_devices();

// Writes CUDA_MODULE_LOADING=EAGER: the driver then loads all kernels before the first one runs. For GPUs whose kernels
// wait for one another's: otherwise the first launch of each kernel loads it, for which the driver may wait for the
// kernels under way, with a lock that other threads' launches need. To be called before the first use of CUDA in the
// process; later it changes nothing.
void load_gpu_code_early();

// Writes NCCL_NVLS_ENABLE=0 and NCCL_GRAPH_REGISTER=0, unless they are set. NCCL then uses no NVLink multicast, whose
// faults reach beyond a process, and takes nothing for recorded work that a plan does not know of. To be called before
// NCCL is loaded.
void set_nccl_defaults();

// Every variable whose name begins with VOLLEY_, with its value, sorted: options of the program (apps/options.h). Some
// are secret: not for logs or messages.
std::vector<std::pair<std::string, std::string>> env_volley_variables();

}  // namespace volley
