// SPDX-License-Identifier: Apache-2.0

// Package logging is gresd's log: structured records for journald when stderr
// is the journal, text otherwise.
package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/coreos/go-systemd/v22/journal"
)

// New returns the logger of a daemon. The level may change while it is used
// ([SetLevel]).
func New(level slog.Leveler) *slog.Logger {
	if ok, err := journal.StderrIsJournalStream(); err == nil && ok {
		return slog.New(NewHandler(level, journal.Send))
	}
	return slog.New(textHandler(os.Stderr, level))
}

// SetLevel reads debug, info, warn or error.
func SetLevel(into *slog.LevelVar, level string) error {
	if err := into.UnmarshalText([]byte(level)); err != nil {
		return fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	return nil
}

func textHandler(w io.Writer, level slog.Leveler) slog.Handler {
	return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})
}

// Send is how a record leaves: journal.Send of go-systemd.
type Send func(message string, priority journal.Priority, vars map[string]string) error

// Handler writes each record as one journal entry. Attributes become fields in
// upper case (job_id is JOB_ID) and are written behind the message as well, for
// people who read without looking at fields.
type Handler struct {
	level slog.Leveler
	send  Send
	attrs []slog.Attr
}

// NewHandler returns a handler for records of that level and above.
func NewHandler(level slog.Leveler, send Send) *Handler {
	return &Handler{level: level, send: send}
}

// Enabled is part of [slog.Handler].
func (h *Handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// Handle is part of [slog.Handler].
func (h *Handler) Handle(_ context.Context, r slog.Record) error {
	attrs := slices.Clone(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	vars := map[string]string{}
	var message strings.Builder
	message.WriteString(r.Message)
	for _, a := range attrs {
		value := a.Value.Resolve().String()
		if name := field(a.Key); name != "" {
			vars[name] = value
		}
		if strings.ContainsFunc(value, unsafe) || value == "" {
			value = fmt.Sprintf("%q", value)
		}
		message.WriteString(" " + a.Key + "=" + value)
	}
	return h.send(message.String(), priority(r.Level), vars)
}

// unsafe characters are quoted: values hold words of users, by way of Slurm's commands and names of
// programs, and journalctl -o cat writes the message as it is to a terminal.
func unsafe(r rune) bool {
	return strings.ContainsRune(" \"=\n", r) || !unicode.IsPrint(r) || r == unicode.ReplacementChar
}

// WithAttrs is part of [slog.Handler].
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	next.attrs = slices.Concat(h.attrs, attrs)
	return &next
}

// WithGroup is part of [slog.Handler]. gresd has no groups.
func (h *Handler) WithGroup(string) slog.Handler { return h }

// field makes a name that journald takes: capitals, digits and _, not starting
// with a digit or _ (those are journald's own). "" if nothing is left.
func field(key string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_':
			return r
		}
		return '_'
	}, key)
	name = strings.TrimLeft(name, "_0123456789")
	// MESSAGE and PRIORITY would say another thing than the record does.
	if name == "MESSAGE" || name == "PRIORITY" {
		name = "VGPU_" + name
	}
	return name[:min(len(name), 64)]
}

func priority(l slog.Level) journal.Priority {
	switch {
	case l >= slog.LevelError:
		return journal.PriErr
	case l >= slog.LevelWarn:
		return journal.PriWarning
	case l >= slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}
