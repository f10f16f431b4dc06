// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
)

// Login makes a host where users log in: it has Slurm's commands and vgpuctl, and nothing of
// gresd's. It returns a program that runs a command there: NAME USER COMMAND [ARGUMENT...].
func (c *Cluster) Login() (program string, err error) {
	ready := Dir + "/login-ready"
	// /run is one file system with the files of everybody: what a login host has comes back.
	holder := &Daemon{
		name: "login host",
		argv: []string{
			"unshare", "--mount", "--propagation", "private", "bash", "-ec",
			`mount --bind /run /mnt
			mount -t tmpfs -o mode=755 tmpfs /run
			for dir in cluster munge; do mkdir /run/$dir; mount --bind /mnt/$dir /run/$dir; done
			umount /mnt
			touch ` + ready + `; exec sleep infinity`,
		},
		log:   filepath.Join(c.logs, "login.log"),
		ready: func() bool { _, err := os.Stat(ready); return err == nil },
	}
	if err := holder.Start(); err != nil {
		return "", err
	}
	c.hosts = append(c.hosts, holder)
	program = Dir + "/bin/login"
	script := fmt.Sprintf(`#!/bin/bash
user=$1; shift
home=%[1]s/home/$user
mkdir -p "$home"; chown "$user" "$home"
exec nsenter --mount --target %[2]d --wd="$home" setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups \
	env -i PATH=%[1]s/bin:/usr/bin:/bin HOME="$home" USER="$user" LOGNAME="$user" LC_ALL=C.UTF-8 TERM="${TERM:-dumb}" "$@"
`, Dir, holder.PID())
	return program, os.WriteFile(program, []byte(script), 0o755)
}
