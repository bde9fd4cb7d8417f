# The history: SQLite, and the tables it is printed as.
fl_library(fl_store WAITS
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/history.cpp
    ${CMAKE_CURRENT_LIST_DIR}/statement.cpp
    ${CMAKE_CURRENT_LIST_DIR}/store.cpp
    ${CMAKE_CURRENT_LIST_DIR}/store_clients.cpp
    ${CMAKE_CURRENT_LIST_DIR}/store_rounds.cpp
    ${CMAKE_CURRENT_LIST_DIR}/store_schema.cpp
  LIBS fl_base SQLite::SQLite3)
