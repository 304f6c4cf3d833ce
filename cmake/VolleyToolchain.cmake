# Language, warnings, sanitizers and the tools that make builds faster.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Rounding is part of the contract (batch invariance): nothing may contract, reassociate or assume finite values.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wno-unused-parameter;-ffp-contract=off>")
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
endif()

set(VOLLEY_SANITIZE "" CACHE STRING
  "Comma-separated sanitizers: address,undefined or thread; with fuzzer also the targets of tests/fuzz")
if(VOLLEY_SANITIZE)
  # Line tables alone: full debug information triples the time and the size of a sanitizer build.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  # All code counts its coverage; the fuzzer's own main belongs to tests/fuzz alone.
  string(REPLACE "fuzzer" "fuzzer-no-link" sanitizers "${VOLLEY_SANITIZE}")
  add_compile_options(-fsanitize=${sanitizers} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${sanitizers})
  if(VOLLEY_SANITIZE MATCHES undefined)
    # AddressSanitizer stops at null pointers and at accesses outside of objects, too. These checks are two fifths of the
    # time to compile; the fuzz targets, whose bytes come from outside, keep those of alignment and of pointer arithmetic.
    add_compile_options(-fno-sanitize-recover=undefined -fno-sanitize=null,object-size,vptr)
    if(NOT VOLLEY_SANITIZE MATCHES fuzzer)
      add_compile_options(-fno-sanitize=alignment,pointer-overflow)
    endif()
  endif()
endif()

# A released program turns overrun buffers and overwritten function pointers into an end of the process. Nothing here
# changes arithmetic. Sanitizers bring checks of their own, and these would hide what they look for.
include(CheckPIESupported)
check_pie_supported(LANGUAGES CXX)
set(VOLLEY_HARDENED OFF)
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT VOLLEY_SANITIZE)
  set(VOLLEY_HARDENED ON)
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong;-fstack-clash-protection;-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
  add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack)
endif()

# Eight files of a target are one translation unit, so that their headers are compiled once: half of a build's time. A
# debug build, which is for changing files, compiles each alone, and so shows a file that lacks an include.
if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(CMAKE_UNITY_BUILD ON)
  # gcc takes a joined file for a header, in which a member of an unnamed namespace's type would be a fault.
  add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>")
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Paths below the source tree are taken relative to the build folder, so that presets with the same flags (cpu and
  # cuda) share what is compiled.
  set(VOLLEY_CCACHE ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${VOLLEY_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${VOLLEY_CCACHE})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()
add_link_options(-Wl,--gc-sections)
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffunction-sections;-fdata-sections>")
