// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"sync"
)

// unreconciled counts reconciliations in a row that failed for one reason. text is for an
// administrator. It takes their number and the error.
type unreconciled struct {
	text string

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
	return []string{fmt.Sprintf(u.text, u.failed, u.why)}
}

const (
	noAnswer = "jobs could not be compared with slurmctld %d times: shares of jobs whose Epilog was lost stay taken: " +
		"scontrol ping on this node, journalctl -u gresd: %v"
	notWritten = "records or folders of jobs could not be written %d times: shares of jobs that have ended may stay taken: " +
		"df on run_dir and state_dir, journalctl -u gresd: %v"
)
