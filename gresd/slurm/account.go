// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// Fields of a job's record in Slurm's accounting that hold free text.
const (
	SystemComment = "SystemComment" // nobody else's
	AdminComment  = "AdminComment"
	Comment       = "Comment" // the user's own
)

// Account is a job's newest record in Slurm's accounting (slurmdbd).
type Account struct {
	// Over says that this run of the job has ended and is recorded as such, and Name is its own.
	Over bool
	// Text is what the field that was asked for holds.
	Text string
	// Name is what sacctmgr knows this job by alone: "7", "7_2" for a task of an
	// array, whose number may be that of the whole array.
	Name string
}

// columns separates what sacct prints: no user can put it into a comment with
// Slurm's own commands.
const columns = "\x01"

// Account returns the record of a job with one of its text fields. Errors:
// ErrNoJob where slurmdbd has none (yet), ErrUnavailable, which is also what a
// cluster without accounting gives.
func (c *Client) Account(ctx context.Context, jobID uint32, field string) (Account, error) {
	text, err := c.run(ctx, "sacct", "-n", "-X", "-P", "--delimiter="+columns, "-j", id(jobID),
		"-o", "JobIDRaw,JobID,End,"+field)
	if err != nil {
		return Account{}, err
	}
	account, err := parseAccount(text, jobID)
	// slurmctld, which was asked while the job ran, knows its name before slurmdbd does.
	if name, known := c.names.of(c.conf, jobID); known && err == nil {
		account.Name = name
	}
	return account, err
}

// accountStart begins a record: the id of an array or het job prints several,
// and a comment may have several lines.
var accountStart = regexp.MustCompile(`(?m)^\d+` + columns)

func parseAccount(text string, jobID uint32) (Account, error) {
	starts := accountStart.FindAllStringIndex(text, -1)
	array := strings.Contains(text, columns+id(jobID)+"_")
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		values := strings.SplitN(strings.TrimSuffix(text[at[0]:end], "\n"), columns, 4)
		if values[0] != id(jobID) {
			continue
		}
		if len(values) != 4 {
			return Account{}, fmt.Errorf("sacct printed %q, want four values: %w", clip(text), ErrUnavailable)
		}
		name := values[0]
		if strings.Contains(values[1], "_") {
			name = values[1]
		}
		// slurmdbd may hear last which task has the number of the whole array. Until then
		// that number would name all of them.
		known := !array || name != values[0]
		return Account{Over: known && isDate(values[2]), Text: values[3], Name: name}, nil
	}
	return Account{}, fmt.Errorf("sacct: job %d: %w", jobID, ErrNoJob)
}

// isDate tells an end from "Unknown" and "None".
func isDate(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// SetAccount replaces a text field of the record of a job (by Account.Name) that has ended:
// slurmctld takes no more changes then, slurmdbd does. sacctmgr makes all letters
// small and quotes into backticks. Errors: ErrUnavailable.
func (c *Client) SetAccount(ctx context.Context, name, field, text string) error {
	_, err := c.run(ctx, "sacctmgr", "-i", "modify", "job", "where", "jobid="+name, "set", field+"="+text)
	return err
}
