// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Values of --color.
const (
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

var colorWords = []string{colorAuto, colorAlways, colorNever}

// paint adds colour to words, or does not.
type paint bool

// paint decides by --color, by NO_COLOR (any value but ""), and by what w is.
func (s *settings) paint(w io.Writer) paint {
	switch s.color {
	case colorAlways:
		return true
	case colorAuto:
		return paint(os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w))
	}
	return false
}

func isTerminal(w io.Writer) bool {
	if columnsOf(w) > 0 {
		return true
	}
	f, is := w.(*os.File)
	return is && term.IsTerminal(int(f.Fd()))
}

func (p paint) code(code, text string) string {
	if !p || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p paint) bold(text string) string   { return p.code("1", text) }
func (p paint) red(text string) string    { return p.code("31", text) }
func (p paint) green(text string) string  { return p.code("32", text) }
func (p paint) yellow(text string) string { return p.code("33", text) }
func (p paint) dim(text string) string    { return p.code("2", text) }

var codes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// width is how many columns a text takes.
func width(text string) int { return utf8.RuneCountInString(codes.ReplaceAllString(text, "")) }

// table aligns columns, the first row being the header. Lines stay within 100
// columns for usual values; on a terminal that is narrower, the spare columns, named
// by their headers, are left out one after the other.
func table(w io.Writer, p paint, rows [][]string, spare ...string) error {
	rows, left := fit(rows, columnsOf(w), spare)
	widths := widthsOf(rows)
	for r, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if r == 0 {
				cell = p.bold(cell)
			}
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-width(cell)+2))
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return sayLeftOut(w, left)
}

func linesOf(text string) []string { return strings.Split(strings.TrimRight(text, "\n"), "\n") }
