// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ConfLines are the lines of slurm.conf, or of another file of that form, and of the files that it
// includes, as Slurm reads them: without comments and empty lines. An included file that cannot be
// read has none.
func ConfLines(path string) ([]string, error) {
	c := conf{files: mostFiles}
	err := c.read(path)
	return c.lines, err
}

// mostFiles are read, should one include itself.
const mostFiles = 100

type conf struct {
	lines []string
	files int // that may still be read
}

func (c *conf) read(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	c.files--
	for line := range strings.Lines(continued.ReplaceAllString(string(text), "")) {
		line, _, _ = strings.Cut(line, "#")
		if words := strings.Fields(line); len(words) > 1 && strings.EqualFold(words[0], "Include") && c.files > 0 {
			file := strings.ReplaceAll(words[1], "%c", strings.ToLower(Conf(c.lines)["clustername"]))
			if !filepath.IsAbs(file) {
				file = filepath.Join(filepath.Dir(path), file)
			}
			_ = c.read(file)
		} else if len(words) > 0 {
			c.lines = append(c.lines, strings.TrimSpace(line))
		}
	}
	return nil
}

var (
	continued = regexp.MustCompile(`\\[ \t\r]*\n`)
	setting   = regexp.MustCompile(`^([\w.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))`)
)

// Conf are the settings of such lines, by name in lower case. Of one that stands twice Slurm takes the
// last, of programs all. What follows the first word of a line belongs to a node, or to a partition.
func Conf(lines []string) map[string]string {
	settings := map[string]string{}
	for _, line := range lines {
		found := setting.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		name, value := strings.ToLower(found[1]), found[2]+found[3]
		if old := settings[name]; old != "" && slices.Contains([]string{"prolog", "epilog", "taskprolog"}, name) {
			value = old + "," + value
		}
		settings[name] = value
	}
	return settings
}

// ReadConf are the settings of a file and of those that it includes.
func ReadConf(path string) (map[string]string, error) {
	lines, err := ConfLines(path)
	return Conf(lines), err
}

// ParseShown reads what "scontrol show config" prints, as Conf does slurm.conf.
func ParseShown(text string) map[string]string {
	shown := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, is := strings.Cut(line, "="); is {
			shown[strings.ToLower(strings.TrimSpace(name))] = strings.TrimSpace(value)
		}
	}
	maps.DeleteFunc(shown, func(_, value string) bool { return value == "(null)" })
	return shown
}

// Settings are the values of slurm.conf that gresd needs.
type Settings struct {
	// CredentialLife is how long slurmd remembers a run of a job (AuthInfo=cred_expire). A
	// requeued job must not start again before: its Prolog would not run.
	CredentialLife time.Duration
	// SerialProlog: slurmd runs one Prolog or Epilog at a time (PrologFlags=Serial). A Prolog that
	// waits then delays all others.
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
