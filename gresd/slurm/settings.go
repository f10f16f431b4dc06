// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"cmp"
	"context"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Settings are what gresd must know of slurm.conf.
type Settings struct {
	// CredentialLife is how long slurmd remembers a run of a job (AuthInfo=cred_expire). A
	// requeued job must not start again before: its Prolog would not run.
	CredentialLife time.Duration
	// SerialProlog: slurmd runs one Prolog or Epilog at a time (PrologFlags=Serial), so that one
	// which waits keeps all others waiting.
	SerialProlog bool
}

// Settings asks slurmctld. Errors: ErrUnavailable.
func (c *Client) Settings(ctx context.Context) (Settings, error) {
	text, err := c.run(ctx, "scontrol", "show", "config")
	if err != nil {
		return Settings{}, err
	}
	return parseSettings(text), nil
}

var credExpire = regexp.MustCompile(`\bcred_expire=(\d+)`)

func parseSettings(text string) Settings {
	s, shown := Settings{CredentialLife: 120 * time.Second}, ParseShown(text)
	if found := credExpire.FindStringSubmatch(cmp.Or(shown["authinfo"], shown["credinfo"])); found != nil {
		if n, err := strconv.ParseUint(found[1], 10, 16); err == nil {
			s.CredentialLife = time.Duration(n) * time.Second
		}
	}
	for flag := range strings.SplitSeq(shown["prologflags"], ",") {
		s.SerialProlog = s.SerialProlog || strings.EqualFold(strings.TrimSpace(flag), "Serial")
	}
	return s
}
