# CUDA: off, or on with a toolkit of version 13 from the system (CUDA_PATH, the PATH, /usr/local/cuda) or from the wheels
# that scripts/fetch_cuda.sh puts into build/cuda-toolkit. Included by the root after project().
option(VOLLEY_CUDA "Build the CUDA backend" OFF)
# As in CMake's CUDA_ARCHITECTURES: machine code (-real) or PTX (-virtual), which drivers compile for GPUs that come
# after. Developers build faster with the one they have: -DVOLLEY_CUDA_ARCHITECTURES=90a-real.
set(VOLLEY_CUDA_ARCHITECTURES "80-real;89-real;90a-real;80-virtual;90-virtual" CACHE STRING "GPUs to build for")
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

# Off: the -gencode flags below say it.
set(CMAKE_CUDA_ARCHITECTURES OFF)
# CMake 3.25 knows no flag of nvcc for C++20, and drops a standard that it has no flag for.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
  message(FATAL_ERROR "${VOLLEY_NVCC} is CUDA ${CMAKE_CUDA_COMPILER_VERSION}; Volley needs 13 or later.")
endif()
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${VOLLEY_CCACHE})
endif()

set(volley_cuda_flags -std=c++20 --fmad=false --expt-relaxed-constexpr)  # rounding is part of the contract
foreach(target ${VOLLEY_CUDA_ARCHITECTURES})
  if(NOT target MATCHES "^([0-9]+[af]?)-(real|virtual)$")
    message(FATAL_ERROR "VOLLEY_CUDA_ARCHITECTURES holds ${target}; write it like 90a-real or 80-virtual.")
  endif()
  set(arch ${CMAKE_MATCH_1})
  if(CMAKE_MATCH_2 STREQUAL "real")
    list(APPEND volley_cuda_flags "-gencode=arch=compute_${arch},code=sm_${arch}")
  else()
    list(APPEND volley_cuda_flags "-gencode=arch=compute_${arch},code=compute_${arch}")
  endif()
endforeach()
# Code for wgmma runs on sm_90a alone, and a program may be built without it.
list(FIND VOLLEY_CUDA_ARCHITECTURES 90a-real volley_cuda_sm90a)
if(volley_cuda_sm90a EQUAL -1)
  set(VOLLEY_CUDA_SM90A OFF)
else()
  set(VOLLEY_CUDA_SM90A ON)
endif()
string(REPLACE ";" " " volley_cuda_flags "${volley_cuda_flags}")
string(APPEND CMAKE_CUDA_FLAGS " ${volley_cuda_flags}")

# The runtime is linked in; only its headers are visible to code that is not CUDA's.
add_library(volley_cuda_runtime INTERFACE)
target_include_directories(volley_cuda_runtime SYSTEM INTERFACE ${VOLLEY_CUDA_ROOT}/include)
find_library(VOLLEY_CUDART cudart_static HINTS ${VOLLEY_CUDA_ROOT}/lib64 ${VOLLEY_CUDA_ROOT}/lib REQUIRED)
target_link_libraries(volley_cuda_runtime INTERFACE ${VOLLEY_CUDART} ${CMAKE_DL_LIBS} Threads::Threads rt)
