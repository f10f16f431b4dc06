// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errChanged: the process is not the one that was judged, or its user is not.
var errChanged = errors.New("it is another process by now, or of another user")

// kill ends the process of a finding: that one, and no other that has its
// number by now, and only one of the job's own user.
func (t *table) kill(f Finding) error {
	if f.Job == 0 || f.owner == 0 || f.Process.Exempt {
		return fmt.Errorf("kill %s: %w", f.Process, errChanged)
	}
	handle, err := unix.PidfdOpen(int(f.Process.PID), 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill %s: %w", f.Process, err)
	}
	defer unix.Close(handle)
	// If the pid was reused before the pidfd was opened, the start time read next differs.
	now, ok := t.stat(f.Process.PID)
	if !ok {
		return nil // it has ended
	}
	uid, ok := t.dir(f.Process.PID).UID()
	if now.Start != f.Process.Start || !ok || uid != f.owner {
		return fmt.Errorf("kill %s: %w", f.Process, errChanged)
	}
	// It may have called exec, and has the library now.
	if f.Kind == Escaped {
		library := t.library(f.Process.PID)
		if library != f.Process.Library && (f.Process.Library != Hidden || library != Blocked && library != Absent) {
			return fmt.Errorf("kill %s: %w", f.Process, errChanged)
		}
	}
	if err := unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %s: %w", f.Process, err)
	}
	return nil
}
