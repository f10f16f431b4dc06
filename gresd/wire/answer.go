// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"os"
)

// IsRoot also trusts gresd's own user, who could change its files anyway.
func IsRoot(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// UserError is a reply about what was asked.
func UserError(format string, args ...any) Reply {
	return Reply{Kind: KindUser, Message: fmt.Sprintf(format, args...)}
}

// BusyError is a reply about what may be known later.
func BusyError(format string, args ...any) Reply {
	return Reply{Kind: KindBusy, Message: fmt.Sprintf(format, args...)}
}

// NodeError is a reply about what is wrong with the node.
func NodeError(format string, args ...any) Reply {
	return Reply{Kind: KindNode, Message: fmt.Sprintf(format, args...)}
}
