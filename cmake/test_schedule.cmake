# How ctest packs the tests. scripts/test gives it four slots for each core. A test takes two of them (PROCESSORS), so
# that two run on each core: every test waits for something now and then. Those that mostly wait, for leases, for silent
# peers or for processes to start and to die, take one; those that compute all the time take four. The longest start
# first (COST), so that no core idles at the end while the other has a long test left.
#
# Patterns of names, of which the first that matches counts, and the seconds that the test takes on two busy cores.
set(MILLRACE_TEST_SECONDS
    "^e2e\\.bits\\.processes$=190" "^e2e\\.pipeline\\.processes$=120" "^e2e\\.bits\\.=95" "^e2e\\.hub_faults\\.processes$=80" "^e2e\\.hub\\.=20" "^e2e\\.pipeline\\.=70"
    "^e2e\\.(hostile|web)\\.=65" "^relay\\.(ucx|plugin)_relay$=65" "^text\\.tokenizer_golden$=45"
    "^e2e\\.(two_hosts|text_hosts|layer_hosts|weights)\\.=40" "^e2e\\.(ends|layer_split|disaggregation)\\.=30" "^relay\\.nccl_relay$=26"
    "^(relay\\.tcp_relay|kernels\\.attention_shared)$=20" "^relay\\.(shm|sim)_relay$=15" "^kernels\\.attention$=14"
    "^stages\\.stage_loop_net$=12" "^api\\.live_view$=9" "^e2e\\.=10" "^(relay|control|pipeline)\\.=4")
# Less than six tenths of their time is work, and what they wait for is long.
set(MILLRACE_TESTS_THAT_WAIT
    "^(relay|control)\\.|^pipeline\\.cluster$|^e2e\\.(pipeline|two_hosts|text_hosts|hub_faults)\\.")
set(MILLRACE_TESTS_THAT_COMPUTE "^(kernels|models|text|scheduler|kv|grammar)\\.|^e2e\\.(bits|web)\\.")

function(millrace_schedule test)
  set(seconds 1)
  foreach(entry ${MILLRACE_TEST_SECONDS})
    string(REGEX MATCH "^(.*)=([0-9]+)$" matched "${entry}")
    set(pattern "${CMAKE_MATCH_1}")
    set(known ${CMAKE_MATCH_2})
    if(test MATCHES "${pattern}")
      set(seconds ${known})
      break()
    endif()
  endforeach()
  # A sanitizer makes work of what was waiting.
  if(test MATCHES "${MILLRACE_TESTS_THAT_COMPUTE}")
    set(slots 4)
  elseif(test MATCHES "${MILLRACE_TESTS_THAT_WAIT}" AND NOT MILLRACE_SANITIZE)
    set(slots 1)
  else()
    set(slots 2)
  endif()
  set_tests_properties(${test} PROPERTIES COST ${seconds} PROCESSORS ${slots})
endfunction()
