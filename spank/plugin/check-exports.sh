#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The plugin shows slurm its four kinds of symbols and nothing else, and is
# linked so that nothing of it can be rewritten at run time.
set -eu
plugin=$1
want='plugin_name
plugin_type
plugin_version
slurm_spank_init
slurm_spank_init_post_opt
slurm_spank_task_init
slurm_spank_task_init_privileged'
got=$(nm -D --defined-only "$plugin" | awk '{print $3}' | LC_ALL=C sort)
if [ "$got" != "$want" ]; then
	printf '%s: exports\n%s\nwant\n%s\n' "$plugin" "$got" "$want" >&2
	exit 1
fi
for flag in BIND_NOW GNU_RELRO; do
	readelf -Wld "$plugin" | grep -q "$flag" || {
		echo "$plugin: not linked with $flag" >&2
		exit 1
	}
done
