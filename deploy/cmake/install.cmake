# SPDX-License-Identifier: Apache-2.0
# cmake --install: the programs, libfl-codec.so with its header, and two C++ libraries: the codecs, and
# the client, for trainers of one's own:
#
#   find_package(Tributary)                       # or: COMPONENTS codec client
#   target_link_libraries(my-program PRIVATE Tributary::codec)
#   target_link_libraries(my-client PRIVATE Tributary::client)
#
# Their headers are those of the source, by the same names: #include "shared/codec/encode/codec.hpp".
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(headers ${CMAKE_INSTALL_INCLUDEDIR}/tributary)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Tributary)

install(TARGETS fl-server fl-client fl-sim RUNTIME)
if(TARGET fl-torch)
  # Installed beside fl-client, which looks for both there. libtorch stays where it was at the
  # build.
  set_target_properties(fl-torch fl-rank PROPERTIES INSTALL_RPATH ${FL_TORCH_LIBRARIES})
  install(TARGETS fl-torch LIBRARY DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(TARGETS fl-rank RUNTIME)
endif()
if(TARGET fl-codec)
  install(TARGETS fl-codec LIBRARY)
  install(FILES shared/codec/c_api.h DESTINATION ${headers})
endif()

# fl_codec, and the libraries of ours that it needs. Outside, their names have no fl_.
foreach(target codec params kernels base asio xxhash hot)
  set_target_properties(fl_${target} PROPERTIES EXPORT_NAME ${target})
  install(TARGETS fl_${target} EXPORT Tributary ARCHIVE INCLUDES DESTINATION ${headers})
endforeach()
install(EXPORT Tributary NAMESPACE Tributary:: FILE TributaryTargets.cmake DESTINATION ${package})
install(DIRECTORY shared/base shared/params shared/codec DESTINATION ${headers}/shared
  FILES_MATCHING PATTERN "*.hpp")
install(DIRECTORY kernels DESTINATION ${headers}
  FILES_MATCHING PATTERN "*.hpp" PATTERN cuda EXCLUDE PATTERN x86 EXCLUDE PATTERN scalar EXCLUDE)

# libfl-client.so, and the headers that client_main.hpp includes.
if(TARGET fl_client_shared)
  install(TARGETS fl_client_shared EXPORT TributaryClient LIBRARY INCLUDES DESTINATION ${headers})
  install(EXPORT TributaryClient NAMESPACE Tributary:: FILE TributaryClientTargets.cmake
    DESTINATION ${package})
  install(FILES client/client_main.hpp DESTINATION ${headers}/client)
  install(FILES client/learn/blockwise_trainer.hpp client/learn/trainer.hpp client/learn/values.hpp DESTINATION ${headers}/client/learn)
  install(FILES shared/algorithm/local_work.hpp DESTINATION ${headers}/shared/algorithm)
endif()

configure_package_config_file(deploy/cmake/TributaryConfig.cmake.in
  ${CMAKE_BINARY_DIR}/TributaryConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TributaryConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/TributaryConfig.cmake
  ${CMAKE_BINARY_DIR}/TributaryConfigVersion.cmake DESTINATION ${package})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
# The pages that messages name. shared/base/documents.cpp looks for them there.
install(DIRECTORY docs/guide docs/design DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tributary/docs
  FILES_MATCHING PATTERN "*.md" PATTERN "*.sql")

# Man pages and completions, made of the programs' --help.
if(NOT FL_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  find_program(FL_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH REQUIRED)
  set(reference ${CMAKE_BINARY_DIR}/reference)
  set(reference_script ${CMAKE_SOURCE_DIR}/deploy/packages/reference.py)
  add_custom_command(OUTPUT ${reference}/made
    COMMAND ${FL_PYTHON} ${reference_script} $<TARGET_FILE_DIR:fl-server> ${reference}
    COMMAND ${CMAKE_COMMAND} -E touch ${reference}/made
    DEPENDS fl-server fl-client fl-sim ${reference_script} ${CMAKE_SOURCE_DIR}/tests/tidy/programs.py
    COMMENT "Writing man pages and completions")
  add_custom_target(reference DEPENDS ${reference}/made)
  add_dependencies(programs reference)
  install(DIRECTORY ${reference}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
  set(completions ${CMAKE_INSTALL_DATADIR})
  install(DIRECTORY ${reference}/bash/ DESTINATION ${completions}/bash-completion/completions)
  install(DIRECTORY ${reference}/zsh/ DESTINATION ${completions}/zsh/vendor-completions)
  install(DIRECTORY ${reference}/fish/ DESTINATION ${completions}/fish/vendor_completions.d)
endif()
