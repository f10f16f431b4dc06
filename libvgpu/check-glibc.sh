#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check-glibc.sh VERSION LIBRARY... - fails when a library needs a glibc newer
# than VERSION, such as 2.17, and names the functions.
set -eu
[ $# -ge 2 ] || { echo "usage: check-glibc.sh VERSION LIBRARY..." >&2; exit 2; }
most=$1
shift
bad=0
for lib; do
	symbols=$("${OBJDUMP:-objdump}" -T "$lib")
	printf '%s\n' "$symbols" | grep -q 'GLIBC_' || {
		echo "$lib: no symbol of glibc: want a library for the dynamic loader" >&2
		exit 1
	}
	newer=$(printf '%s\n' "$symbols" | awk -v most="$most" '
	function newer(v, w,    a, b, i, n) {
		n = split(v, a, "."); split(w, b, ".")
		for (i = 1; i <= n; i++) if (a[i] + 0 != b[i] + 0) return a[i] + 0 > b[i] + 0
		return 0
	}
	/[*]UND[*]/ && match($0, /GLIBC_[0-9.]+/) {
		v = substr($0, RSTART + 6, RLENGTH - 6)
		if (newer(v, most)) print "    " $NF " of glibc " v
	}')
	if [ -n "$newer" ]; then
		printf '%s: needs a glibc newer than %s (see libvgpu/base/old_glibc.h):\n%s\n' "$lib" "$most" "$newer" >&2
		bad=1
	fi
done
exit $bad
