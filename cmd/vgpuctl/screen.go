// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// screen is a terminal. A line that is wider is broken between words, and goes on
// below its text: nothing is cut, and no word is torn by the terminal itself.
type screen struct {
	to      io.Writer
	columns int
	part    string // of a line that has not ended
}

// onScreen returns w, or where w is a terminal, its screen.
func onScreen(w io.Writer) io.Writer {
	f, is := w.(*os.File)
	if !is || !term.IsTerminal(int(f.Fd())) {
		return w
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns < 20 {
		return w
	}
	return &screen{to: w, columns: columns}
}

// columnsOf is the width of a terminal; 0: it is none, and lines are as long as
// they are.
func columnsOf(w io.Writer) int {
	if s, is := w.(*screen); is {
		return s.columns
	}
	return 0
}

func (s *screen) Write(text []byte) (int, error) {
	lines := strings.Split(s.part+string(text), "\n")
	s.part = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		indent := len(line) - len(strings.TrimLeft(line, " ")) + 2
		if _, err := io.WriteString(s.to, fold(line, s.columns, indent)+"\n"); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}

// fold breaks a line that is wider than columns between words; 0 columns: it breaks none. The next lines begin with indent blanks.
func fold(line string, columns, indent int) string {
	if columns == 0 || width(line) <= columns {
		return line
	}
	var lines []string
	now := ""
	for _, word := range strings.SplitAfter(line, " ") {
		if width(strings.TrimRight(now+word, " ")) > columns && width(now) > indent {
			lines, now = append(lines, strings.TrimRight(now, " ")), strings.Repeat(" ", indent)
		}
		if word != " " || len(lines) == 0 || width(now) > indent {
			now += word
		}
	}
	return strings.Join(append(lines, strings.TrimRight(now, " ")), "\n")
}
