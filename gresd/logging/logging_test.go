// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"unicode"

	"github.com/coreos/go-systemd/v22/journal"
)

type entry struct {
	message  string
	priority journal.Priority
	vars     map[string]string
}

func record(level slog.Level, log func(*slog.Logger)) []entry {
	var got []entry
	log(slog.New(NewHandler(level, func(m string, p journal.Priority, v map[string]string) error {
		got = append(got, entry{m, p, v})
		return nil
	})))
	return got
}

func TestHandler(t *testing.T) {
	for name, c := range map[string]struct {
		log  func(*slog.Logger)
		want entry
	}{
		"fields in upper case": {
			func(l *slog.Logger) { l.Info("granted", "job_id", 7, "gpu_uuid", "GPU-1") },
			entry{"granted job_id=7 gpu_uuid=GPU-1", journal.PriInfo, map[string]string{"JOB_ID": "7", "GPU_UUID": "GPU-1"}},
		},
		"errors and values with spaces": {
			func(l *slog.Logger) { l.Error("accept", "error", errors.New("no such file")) },
			entry{`accept error="no such file"`, journal.PriErr, map[string]string{"ERROR": "no such file"}},
		},
		"attributes of the logger": {
			func(l *slog.Logger) { l.With("b", 1).Warn("x", "d", 2) },
			entry{"x b=1 d=2", journal.PriWarning, map[string]string{"B": "1", "D": "2"}},
		},
		"names that journald keeps for itself": {
			func(l *slog.Logger) { l.Info("x", "_pid", 1, "message", "m", "a-b", 2, "9", 3) },
			entry{"x _pid=1 message=m a-b=2 9=3", journal.PriInfo, map[string]string{"PID": "1", "VGPU_MESSAGE": "m", "A_B": "2"}},
		},
		"a new line cannot make a second entry": {
			func(l *slog.Logger) { l.Info("x", "reason", "a\nPRIORITY=0") },
			entry{`x reason="a\nPRIORITY=0"`, journal.PriInfo, map[string]string{"REASON": "a\nPRIORITY=0"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := record(slog.LevelInfo, c.log)
			if len(got) != 1 || got[0].message != c.want.message || got[0].priority != c.want.priority || !maps.Equal(got[0].vars, c.want.vars) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// What a user may have written cannot command the terminal of who reads the log, or look like another field.
func TestWordsOfUsersAreQuoted(t *testing.T) {
	for _, bad := range []string{"\x1b[2J", "a\rb", "\u202eevil", "\x00", "\xff", "x job_id=1", "line\nline"} {
		got := record(slog.LevelInfo, func(l *slog.Logger) { l.Info("m", "name", bad) })
		if len(got) != 1 || got[0].message != "m name="+fmt.Sprintf("%q", bad) || strings.ContainsFunc(got[0].message, unicode.IsControl) {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestHandlerLevel(t *testing.T) {
	got := record(slog.LevelWarn, func(l *slog.Logger) { l.Info("a"); l.Warn("b") })
	if len(got) != 1 || got[0].message != "b" {
		t.Errorf("got %+v, want only the warning", got)
	}
}

func TestNew(t *testing.T) {
	var level slog.LevelVar
	if err := SetLevel(&level, "loud"); err == nil || !strings.Contains(err.Error(), "want debug") {
		t.Errorf("got %v, want an error with the levels", err)
	}
	t.Setenv("JOURNAL_STREAM", "")
	if err := SetLevel(&level, "info"); err != nil {
		t.Fatal(err)
	}
	l := New(&level)
	if !l.Enabled(t.Context(), slog.LevelInfo) {
		t.Error("no information at the level info")
	}
	if err := SetLevel(&level, "warn"); err != nil {
		t.Fatal(err)
	}
	if _, ok := l.Handler().(*slog.TextHandler); !ok || l.Enabled(t.Context(), slog.LevelInfo) {
		t.Errorf("handler %T, want text for warnings", l.Handler())
	}
	var buf bytes.Buffer
	slog.New(textHandler(&buf, slog.LevelInfo)).Info("granted", "job_id", 7)
	if !strings.Contains(buf.String(), "msg=granted job_id=7") {
		t.Errorf("text %q", buf.String())
	}
}
