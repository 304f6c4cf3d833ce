# A folder under src/ is one library, and sees the folders it names in DEPS and, as these are public, what those see. Each
# folder's headers are reachable through a directory of its own that holds a single link, so that `#include
# "kv/page_pool.h"` fails to compile in a target that reaches `kv` in neither way.

function(volley_folder_include target scope folder)
  set(root ${CMAKE_BINARY_DIR}/headers/${folder})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/src/${folder} ${root}/${folder} SYMBOLIC)
  target_include_directories(${target} ${scope} ${root})
endfunction()

# volley_library(folder SOURCES a.cc ... DEPS base device ... LIBS PkgConfig::HWY ...)
function(volley_library folder)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;LIBS;PRIVATE_LIBS" ${ARGN})
  add_library(volley_${folder} STATIC ${A_SOURCES})
  volley_folder_include(volley_${folder} PUBLIC ${folder})
  target_link_libraries(volley_${folder} PUBLIC volley_api)
  foreach(dep ${A_DEPS})
    target_link_libraries(volley_${folder} PUBLIC volley_${dep})
  endforeach()
  target_link_libraries(volley_${folder} PUBLIC ${A_LIBS} PRIVATE ${A_PRIVATE_LIBS})
endfunction()

# volley_test(name SOURCES a_test.cc ... DEPS ops ... LABELS engine ...): one program, one ctest entry. It runs in the
# source tree's root, so that tests reach models/ and tests/data by relative paths, and keeps its caches in the build tree.
function(volley_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPS;LIBS;LABELS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 600)
  endif()
  add_executable(${name} ${A_SOURCES})
  # A GPU's test program gathers files that are programs of their own for the CPU, so names in them repeat. They are the
  # same objects, so ccache compiles them once.
  set(environment XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache)
  list(LENGTH A_SOURCES files)
  if("cuda" IN_LIST A_LABELS)
    list(APPEND environment VOLLEY_TEST_DEVICE=cuda)
  endif()
  if("cuda" IN_LIST A_LABELS OR files EQUAL 1)
    set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  endif()
  # Undefined behaviour of a test's own code is not worth a quarter of the time to compile it. Some of the operations'
  # tests compile kernels, too.
  if(VOLLEY_SANITIZE MATCHES undefined AND NOT "ops" IN_LIST A_DEPS)
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  endif()
  foreach(dep ${A_DEPS})
    target_link_libraries(${name} PRIVATE volley_${dep})
  endforeach()
  target_link_libraries(${name} PRIVATE ${A_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  # Tests that may take long begin first, so that no core is idle while the last one ends.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} COST ${A_TIMEOUT} LABELS "${A_LABELS}"
    ENVIRONMENT "${environment}")
endfunction()
