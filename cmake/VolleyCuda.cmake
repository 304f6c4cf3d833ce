# CUDA: off, or on with a toolkit of version 13 from the system (CUDA_PATH, the PATH, /usr/local/cuda) or from the wheels
# that scripts/fetch_cuda.sh puts into build/cuda-toolkit. Included by the root after project().
option(VOLLEY_CUDA "Build the CUDA backend" OFF)
# Hopper alone so far: the matrix kernels have no version for older GPUs.
set(VOLLEY_CUDA_TARGETS "90a" CACHE STRING "Compute capabilities to build machine code for")
if(NOT VOLLEY_CUDA)
  return()
endif()

set(VOLLEY_CUDA_FETCHED ${CMAKE_SOURCE_DIR}/build/cuda-toolkit CACHE PATH "Where scripts/fetch_cuda.sh puts a toolkit")
find_program(VOLLEY_NVCC nvcc HINTS $ENV{CUDA_PATH}/bin ${VOLLEY_CUDA_FETCHED}/bin PATHS /usr/local/cuda/bin)
if(NOT VOLLEY_NVCC)
  message(FATAL_ERROR "No CUDA toolkit: install CUDA 13, or run scripts/fetch_cuda.sh, which fetches one into build/.")
endif()
set(CMAKE_CUDA_COMPILER ${VOLLEY_NVCC})
get_filename_component(VOLLEY_CUDA_ROOT ${VOLLEY_NVCC} REALPATH)
get_filename_component(VOLLEY_CUDA_ROOT ${VOLLEY_CUDA_ROOT}/../.. ABSOLUTE)

# Empty: the -gencode flags below say it, because 90a has machine code and no PTX of its own.
set(CMAKE_CUDA_ARCHITECTURES OFF)
# CMake 3.25 knows no flag of nvcc for C++20, and drops a standard that it has no flag for.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
  message(FATAL_ERROR "${VOLLEY_NVCC} is CUDA ${CMAKE_CUDA_COMPILER_VERSION}; Volley needs 13 or later.")
endif()
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

set(volley_cuda_flags -std=c++20 --fmad=false --expt-relaxed-constexpr)  # rounding is part of the contract
foreach(target ${VOLLEY_CUDA_TARGETS})
  list(APPEND volley_cuda_flags "-gencode=arch=compute_${target},code=sm_${target}")
endforeach()
string(REPLACE ";" " " volley_cuda_flags "${volley_cuda_flags}")
string(APPEND CMAKE_CUDA_FLAGS " ${volley_cuda_flags}")

# The runtime is linked in; only its headers are visible to code that is not CUDA's.
add_library(volley_cuda_runtime INTERFACE)
target_include_directories(volley_cuda_runtime SYSTEM INTERFACE ${VOLLEY_CUDA_ROOT}/include)
find_library(VOLLEY_CUDART cudart_static HINTS ${VOLLEY_CUDA_ROOT}/lib64 ${VOLLEY_CUDA_ROOT}/lib REQUIRED)
target_link_libraries(volley_cuda_runtime INTERFACE ${VOLLEY_CUDART} ${CMAKE_DL_LIBS} Threads::Threads rt)
