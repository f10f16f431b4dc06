#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares what libvgpu.so exports with hooks.def and others.def: neither more nor less.
set -eu
lib=${1:?usage: check-exports.sh LIBRARY}
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
nm -D --defined-only "$lib" | awk '$2 != "A" {print $3}' | sed 's/@.*//' | sort -u >"$tmp/have"
{
	awk -F'[(,]' '/^(CU|NV)/ && $1 !~ /_USE$/ {
		print $2
		if ($1 ~ /_PT[SD][SZ]$/) print $2 tolower(substr($1, length($1) - 4))
	}' "$here/driver/hooks.def"
	sed -n '/^USE/!s/^[A-Z]*([A-Za-z_]*, \([A-Za-z0-9_]*\), .*/\1/p' "$here"/driver/open[cg]l.def "$here/driver/vulkan.def" "$here/driver/others.def"
	printf '%s\n' dlmopen dlopen dlsym dlvsym ioctl
} | sort >"$tmp/want"
if ! diff -u "$tmp/want" "$tmp/have" >"$tmp/diff"; then
	echo "libvgpu: exports differ from hooks.def (- missing, + too many):" >&2
	grep '^[-+][a-z]' "$tmp/diff" >&2
	exit 1
fi
# The C library's oldest is 2.2.5 on x86-64 and 2.17 on arm64.
for version in '(2.2.5|2.17)' 2.34; do
	if ! nm -D --defined-only "$lib" | grep -Eq " dlsym@@?GLIBC_$version\$"; then
		echo "libvgpu: dlsym is not exported as GLIBC_$version" >&2
		exit 1
	fi
done
if objdump -p "$lib" | grep -E 'NEEDED +libcuda|NEEDED +libnvidia'; then
	echo "libvgpu: must not need the driver's libraries" >&2
	exit 1
fi
echo "libvgpu: $(wc -l <"$tmp/have") exports, as in hooks.def"
