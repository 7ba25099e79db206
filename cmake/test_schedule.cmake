# How ctest packs the tests. scripts/test gives it four slots for each core. A test takes two of them (PROCESSORS), so
# that two run on each core: every test waits for something now and then. Those that mostly wait, for leases, for silent
# peers or for processes to start and to die, take one; those that compute all the time take four. The longest start
# first (COST), so that no core idles at the end while the other has a long test left.
#
# Patterns of names, of which the first that matches counts, and the seconds that the test takes on two busy cores.
set(MILLRACE_TEST_SECONDS
    "^e2e\\.web\\.=155" "^e2e\\.layer_hosts\\.=140" "^e2e\\.pipeline\\.processes$=120" "^e2e\\.text_hosts\\.=110" "^e2e\\.pipeline\\.=80"
    "^e2e\\.two_hosts\\.=90" "^e2e\\.(hub_faults|prefill_hosts)\\.=80" "^relay\\.(ucx|plugin)_relay$=110" "^e2e\\.hostile\\.=65"
    "^e2e\\.(speech_faults|weights|restarted_weights)\\.=60" "^text\\.tokenizer_golden$=50" "^e2e\\.bits\\.processes$=50"
    "^e2e\\.(tools|disaggregation_proxy)\\.=45" "^pipeline\\.cluster$=40" "^e2e\\.signals_and_shutdown\\.=35" "^e2e\\.api\\.=35"
    "^e2e\\.(hub|layer_split|vision_split|disaggregation)\\.=30" "^relay\\.nccl_relay$=26" "^e2e\\.(api_fields|video|weights_broadcast|random_disconnects|terminal|bits)\\.=20"
    "^runner\\.chain_(runner|faults)$=20" "^(relay\\.tcp_relay|kernels\\.attention_shared)$=18" "^relay\\.(shm|sim)_relay$=15" "^kernels\\.attention$=12"
    "^stages\\.stage_loop_net$=12" "^api\\.live_view$=9" "^e2e\\.=10" "^(relay|control|pipeline)\\.=4")
# Less than a third of their time is work, or less than six tenths and what they wait for is long.
set(MILLRACE_TESTS_THAT_WAIT
    "^(relay|control)\\.|^pipeline\\.cluster$|^e2e\\.(disaggregation_proxy|signals_and_shutdown|child_environment|failed_loads|hub_faults|layer_hosts|pipeline|text_hosts|two_hosts)\\.")
set(MILLRACE_TESTS_THAT_COMPUTE "^(kernels|models|text|scheduler|kv|grammar)\\.|^e2e\\.bits\\.")

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
