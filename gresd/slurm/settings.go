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
	shown, err := c.Config(ctx)
	if err != nil {
		return Settings{}, err
	}
	return settingsOf(shown), nil
}

// Config returns the settings that slurmctld uses, by name in lower case. Errors: ErrUnavailable.
func (c *Client) Config(ctx context.Context) (map[string]string, error) {
	text, err := c.run(ctx, scontrolName, "show", "config")
	if err != nil {
		return nil, err
	}
	return ParseShown(text), nil
}

// NoTimeout is the value of a timeout that Slurm does not have, in seconds.
const NoTimeout = 65534

var credExpire = regexp.MustCompile(`\bcred_expire=(\d+)`)

func settingsOf(shown map[string]string) Settings {
	s := Settings{CredentialLife: 120 * time.Second}
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
