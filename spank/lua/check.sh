#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests of etc/slurm/*.lua with every Lua that is installed; at least one must be.
set -eu
cd "$(dirname "$0")"
found=0
for lua in lua5.1 lua5.2 lua5.3 lua5.4 lua; do
	command -v "$lua" >/dev/null || continue
	found=1
	"$lua" submit_test.lua
	"$lua" cli_filter_test.lua
done
if [ "$found" = 0 ]; then
	echo "check.sh: no lua: apt-get install lua5.3" >&2
	exit 1
fi
