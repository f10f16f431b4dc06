// SPDX-License-Identifier: Apache-2.0

package storm

import "golang.org/x/sys/unix"

// Calls that arm64 does not have: there, only those that name a folder, too.
func init() {
	for call, name := range map[uint32]string{
		unix.SYS_RENAME: "rename", unix.SYS_MKDIR: "mkdir", unix.SYS_UNLINK: "unlink", unix.SYS_RMDIR: "unlink", unix.SYS_CHMOD: "chmod",
	} {
		watched[call], pathFirst[int32(call)] = name, true
	}
}
