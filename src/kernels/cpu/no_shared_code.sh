#!/bin/sh
# Fails when a per-ISA object defines a symbol that other objects may share (weak, unique or a global function): the
# linker could then pick the copy with AVX2 or AVX-512 instructions for the whole program.
# Usage: no_shared_code.sh NM ARCHIVE
set -eu
nm="$1"
archive="$2"
listing=$("$nm" -A --defined-only "$archive" | grep -E '(kernels|panels)_[a-z0-9_]+\.cc\.o' || true)
tables=$(printf '%s\n' "$listing" | grep -c -E ' [DRBV] .*k[A-Za-z0-9]+(Kernels|Panels)' || true)
if [ "$tables" -lt 1 ]; then
  echo "no kernel table found in $archive: is this the right archive?"
  exit 1
fi
# Sanitizer builds add data of their own (DW.ref is a pointer to the unwinder); lower case letters are local symbols.
shared=$(printf '%s\n' "$listing" | grep -E ' [A-Zuvw] ' | grep -v -E 'k[A-Za-z0-9]+(Kernels|Panels)|__asan|__odr_asan|__tsan|DW\.ref' || true)
if [ -n "$shared" ]; then
  echo "per-ISA objects define shared symbols:"
  printf '%s\n' "$shared"
  exit 1
fi
echo "$tables kernel tables, no shared symbols"
