// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"sync"
)

// unreconciled counts the comparisons with slurmctld that failed, one after the other.
type unreconciled struct {
	mu     sync.Mutex
	failed int
	why    error
}

// manyFailed is from how many on it is a problem: slurmctld may restart.
const manyFailed = 3

// note takes the result of one. Nothing to compare is no failure.
func (u *unreconciled) note(err error, nothing bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil || nothing {
		u.failed, u.why = 0, nil
		return
	}
	u.failed++
	u.why = err
}

func (u *unreconciled) problems() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failed < manyFailed {
		return nil
	}
	return []string{fmt.Sprintf("jobs could not be compared with slurmctld %d times: shares of jobs whose Epilog was lost stay taken: "+
		"scontrol ping on this node, journalctl -u gresd: %v", u.failed, u.why)}
}
